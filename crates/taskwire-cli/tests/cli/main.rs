//! The program from outside: its command line, its messages, how it starts and ends, and what a terminal shows of it.

mod answer;
mod backup;
mod call;
mod commands;
mod completions;
mod connect;
mod data;
mod doctor;
mod faults;
mod fixture;
mod help;
mod hostile_clients;
mod init;
mod inside;
mod join;
mod kill;
mod kit;
mod nodes;
mod observing;
mod operators;
mod refusals;
mod reload;
mod serve;
mod service_manager;
mod stdio;
mod store;
mod tasks;
mod terminal;
#[path = "../../../taskwire/src/testing.rs"]
mod testing;
mod tls;
mod tools;
mod traces;
mod user;
mod watch;
mod window;
