//! End-to-end tests of the workspace; see `tests/`.
