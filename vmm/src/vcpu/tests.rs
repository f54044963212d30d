//! The bus. The threads are tested with guests, in `tests/bare_metal/`.
