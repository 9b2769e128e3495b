"""What only people with the source need: benchmarks, and the papers reproduced. It is not in the wheel.

    python -m research bench w1 --n 200k            (make bench ARGS="w1 --n 200k")
    python -m research reproduce rein --plan        (make reproduce ARGS="rein --plan")

`bench` is the harness; `goals`, `documents` and `constructs` are fixed sets of measurements. `reproduce` repeats the
experiments that `papers/` declares: `runner` measures them, `judging` decides on their claims, `report` writes pages.
"""
