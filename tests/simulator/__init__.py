"""The broker in a clock that can be repeated: simulated time, a disk that fails on purpose, a model that watches."""
