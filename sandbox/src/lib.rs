//! The hayfork engine: guest images, sessions, limits and the choice of a backend.

pub mod images;
