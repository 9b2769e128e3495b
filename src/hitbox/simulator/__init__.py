"""The broker in a world that can be repeated: simulated time, a disk that fails on purpose, a model that watches."""
