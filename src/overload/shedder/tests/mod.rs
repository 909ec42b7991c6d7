mod controller;
mod levels;
