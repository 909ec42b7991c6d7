use super::*;

mod limit;
mod rate;
