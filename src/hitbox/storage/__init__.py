"""Files: addresses, writer locks, arrays with checksums, versions of snapshots."""
