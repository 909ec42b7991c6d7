mod cpu;
mod scheduling;
