//! A real gate between a client and servers of the tests. One program, so that it is linked once.

mod connections;
mod exchanges;
mod indexes;
mod inspect;
mod kit;
mod names;
mod oracle;
mod proxies;
mod secrets;
mod site;
mod streams;
mod tunnels;
mod two;
