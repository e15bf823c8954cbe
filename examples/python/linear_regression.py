"""Data-parallel linear regression with NumPy: every process has its own samples, and all processes find equal weights.

  unisono launch -n 4 -- python3 examples/python/linear_regression.py

or, by hand, the same program four times with RANK, WORLD_SIZE and UNISONO_RENDEZVOUS set (docs/guides/operations.md).
"""

import argparse

import numpy as np

import unisono


def samples_of(rank, count, weights):
    """Returns this rank's part of the data: y = x · weights plus a little noise."""
    chance = np.random.default_rng(rank)
    inputs = chance.standard_normal((count, weights.size)).astype(np.float32)
    return inputs, inputs @ weights + 0.1 * chance.standard_normal(count).astype(np.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--codec", default="plain", help="how gradients travel: plain, bf16, int8, … [plain]")
    options = parser.parse_args()

    group = unisono.join()
    true_weights = np.linspace(-1, 1, 50, dtype=np.float32)
    inputs, targets = samples_of(group.rank, 1000, true_weights)
    weights, gradient = np.zeros_like(true_weights), np.empty_like(true_weights)

    for step in range(options.steps):
        errors = inputs @ weights - targets
        np.matmul(errors, inputs, out=gradient)
        gradient /= np.float32(errors.size)
        loss = np.array([np.mean(errors**2)], np.float32)
        averaging = group.all_reduce_async(gradient, op="avg", codec=options.codec)  # two operations in flight at once
        group.all_reduce(loss, op="avg")
        report = averaging.wait()
        weights -= np.float32(0.2) * gradient
        if group.rank == 0 and step % 25 == 0:
            print(f"step {step:3}: loss {loss[0]:.4f}")

    everybodys = group.all_gather(weights).output
    if group.rank == 0:
        print(f"last all-reduce: {report}")
        print(
            f"largest error of a weight {np.abs(weights - true_weights).max():.3f}; ranks agree to the bit: {bool((everybodys == weights).all())}"
        )


if __name__ == "__main__":
    main()
