//! The gate: the only way out of one sandbox.
//!
//! One process on the host for one sandbox, one thread, no privilege. It listens on sockets that the
//! guest made inside and handed over, and decides for each question and each connection.
//!
//! ```text
//! inside                     gate                                            outside
//! ──────                     ────                                            ───────
//! name? ───────────────────▶ names: an address of its own, or NXDOMAIN
//! connect to that address ─▶ direct ─┐
//! CONNECT, GET http://… ───▶ proxy  ─┼─▶ rules ─▶ first bytes ─┬─▶ tunnel ──▶ dial (resolve once,
//! SOCKS5 ──────────────────▶ socks  ─┘                         └─▶ inspect ─▶  check, that address)
//! ```
//!
//! INVARIANT: what a rule is matched against is what is dialled: one [`ringfence_model::host::Host`]
//! value goes from the first parser to the last.
//! INVARIANT: nothing of a question leaves the machine unless a rule allows the host.

mod ask;
mod authority;
mod budget;
mod cache;
mod connect;
mod dial;
mod dns;
mod first;
mod guest;
mod head;
mod hello;
mod index;
mod inspect;
mod listen;
mod names;
mod open;
mod prefixed;
mod privileges;
mod proxy;
mod refusal;
mod resolve;
mod secrets;
mod socks;
mod start;
mod state;
mod syscalls;
mod tunnel;
mod wall;
mod words;

pub use start::{run, serve};
