"""Package layout only: each top-level stage folder is imported as ``stopwise.<stage>``."""

from setuptools import find_packages, setup

STAGES = ["data", "models", "signals", "controllers", "envs", "evaluation", "train", "runtime", "cli"]

CODE = find_packages(include=[pattern for stage in STAGES for pattern in (stage, f"{stage}.*")])

setup(
    packages=[f"stopwise.{name}" for name in [*CODE, "configs"]],  # configs holds YAML only
    package_dir={f"stopwise.{stage}": stage for stage in [*STAGES, "configs"]},
)
