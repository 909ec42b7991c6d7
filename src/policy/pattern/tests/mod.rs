use super::*;

mod spelling;
mod syntax;
