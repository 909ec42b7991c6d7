use super::*;

mod address;
mod lists;
mod proxies;
