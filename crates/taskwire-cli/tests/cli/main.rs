//! The program from outside: its command line, its words, and how it starts and ends.

mod help;
mod kit;
mod refusals;
mod serve;
mod stdio;
