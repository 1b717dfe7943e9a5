"""Before any test module is imported."""

import os

# As in executor_service.runner, which tests may import after torch: OpenMP reads it only once, and
# threads that spin for each other make tests ten times slower wherever something else runs.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
