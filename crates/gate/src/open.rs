//! What is open, so that what new rules no longer allow is closed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use ringfence_model::host::Host;
use ringfence_model::policy::network::{Protocol, RequestPath, Verdict};
use tokio::sync::Notify;

use crate::state::Gate;

/// Everything that is open.
#[derive(Default)]
pub(crate) struct Register {
    entries: RefCell<HashMap<u64, Rc<Entry>>>,
    next: Cell<u64>,
    /// The gate ends: what comes now is closed at once.
    closed: Cell<bool>,
    empty: Notify,
}

/// What is being done with a host.
pub(crate) enum Doing {
    /// Bytes are passed on unread: any, or those of TLS.
    Opaque(Protocol),
    /// A connection whose requests are entries of their own.
    Requests,
    Request {
        method: String,
        path: RequestPath,
    },
}

struct Entry {
    host: Host,
    port: u16,
    doing: Doing,
    /// Where it leads.
    address: Cell<Option<IpAddr>>,
    revoked: Cell<bool>,
    wake: Notify,
}

impl Entry {
    fn allowed(&self, gate: &Gate) -> bool {
        let rules = gate.rules();
        let verdict = match &self.doing {
            Doing::Opaque(_) | Doing::Requests => rules.connection(&self.host, self.port),
            Doing::Request { method, path } => rules.request(&self.host, self.port, method, path),
        };
        let Verdict::Allow(rule) = verdict else {
            return false;
        };
        let content = match self.doing {
            Doing::Opaque(Protocol::Tcp) => rule.protocol == Protocol::Tcp,
            Doing::Opaque(Protocol::Web) => !gate.looks_inside(&self.host, self.port),
            Doing::Requests | Doing::Request { .. } => true,
        };
        let taken = |address| gate.mock(&self.host).is_some() || rule.takes(address);
        content && self.address.get().is_none_or(taken)
    }

    fn revoke(&self) {
        self.revoked.set(true);
        self.wake.notify_waiters();
    }
}

impl Register {
    /// Something is open until the answer is dropped.
    pub(crate) fn add(gate: &Rc<Gate>, host: &Host, port: u16, doing: Doing) -> Held {
        let register = &gate.open;
        let number = register.next.get();
        register.next.set(number + 1);
        let entry = Rc::new(Entry {
            host: host.clone(),
            port,
            doing,
            address: Cell::new(None),
            revoked: Cell::new(register.closed.get()),
            wake: Notify::new(),
        });
        // Rules may have changed while the caller waited for something.
        if !entry.allowed(gate) {
            entry.revoke();
        }
        register.entries.borrow_mut().insert(number, entry.clone());
        Held {
            gate: gate.clone(),
            number,
            entry,
        }
    }

    /// Tells what is no longer allowed to close. Answers how many that are.
    pub(crate) fn close_denied(&self, gate: &Gate) -> u64 {
        let mut closed = 0;
        for entry in self.entries.borrow().values() {
            if !entry.revoked.get() && !entry.allowed(gate) {
                entry.revoke();
                closed += 1;
            }
        }
        closed
    }

    /// Tells everything to close, also what is opened later.
    pub(crate) fn close_all(&self) {
        self.closed.set(true);
        for entry in self.entries.borrow().values() {
            entry.revoke();
        }
    }

    /// Whether the gate ends.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Waits until nothing is open.
    pub(crate) async fn emptied(&self) {
        loop {
            let wait = self.empty.notified();
            if self.entries.borrow().is_empty() {
                return;
            }
            wait.await;
        }
    }
}

/// Something that is open.
pub(crate) struct Held {
    gate: Rc<Gate>,
    number: u64,
    entry: Rc<Entry>,
}

impl Held {
    /// The address that was dialled.
    pub(crate) fn leads_to(&self, address: IpAddr) {
        self.entry.address.set(Some(address));
    }

    /// Waits until it must close.
    pub(crate) async fn revoked(&self) {
        loop {
            let wait = self.entry.wake.notified();
            if self.entry.revoked.get() {
                return;
            }
            wait.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let register = &self.gate.open;
        let mut entries = register.entries.borrow_mut();
        entries.remove(&self.number);
        if entries.is_empty() {
            register.empty.notify_waiters();
        }
    }
}
