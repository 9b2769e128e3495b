"""Files: addresses, locks of writers, arrays with checksums, versions of snapshots."""
