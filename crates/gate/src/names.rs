//! Names that were asked for: each has an address of its own inside, so that the address of an
//! accepted connection tells which name was meant.
//!
//! INVARIANT: an address belongs to one name for the life of the gate. One that was never handed out
//! has no listener; the kernel refuses it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use ringfence_model::gate::{NAMES_FIRST, NAMES_LAST, Via};
use ringfence_model::host::Host;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::Instant;

use crate::prefixed::Prefixed;
use crate::state::{Flow, Gate};
use crate::{connect, listen};

/// BOUND: names with listeners. Beyond it, the one that was used least lately has none until it is
/// asked for again.
const MAX_NAMES: usize = 512;
/// BOUND: names that ever had an address. Only a rule with a wildcard comes near it.
const MAX_GIVEN: usize = 1 << 16;
/// BOUND: ports of one name.
const MAX_PORTS: usize = 32;

#[derive(Default)]
pub(crate) struct Names {
    /// Those that have listeners, or had them under other rules.
    known: RefCell<HashMap<Host, Rc<Name>>>,
    addresses: RefCell<HashMap<Host, Ipv4Addr>>,
    /// Whose each address is, from the first on.
    given: RefCell<Vec<Host>>,
}

struct Name {
    address: Ipv4Addr,
    used: Cell<Instant>,
    listeners: RefCell<BTreeMap<u16, AbortHandle>>,
    /// Whoever makes listeners for the name does it alone.
    turn: tokio::sync::Mutex<()>,
}

impl Name {
    fn close(&self, stays: impl Fn(u16) -> bool) {
        self.listeners.borrow_mut().retain(|port, task| {
            let stays = stays(*port);
            if !stays {
                task.abort();
            }
            stays
        });
    }
}

impl Names {
    /// The name whose address this is; else the host itself.
    pub(crate) fn meant(&self, host: Host) -> Host {
        let own = match &host {
            Host::Address(IpAddr::V4(address)) => address
                .to_bits()
                .checked_sub(NAMES_FIRST.to_bits())
                .and_then(|number| self.given.borrow().get(number as usize).cloned()),
            _ => None,
        };
        own.unwrap_or(host)
    }

    /// The address of an allowed name. Whoever has it can connect: the listeners are there.
    pub(crate) async fn address_of(gate: &Rc<Gate>, host: &Host) -> io::Result<Ipv4Addr> {
        let name = gate.names.entry(host)?;
        name.used.set(Instant::now());
        listen_for(gate, host, &name).await?;
        Ok(name.address)
    }

    fn entry(&self, host: &Host) -> io::Result<Rc<Name>> {
        if let Some(name) = self.known.borrow().get(host) {
            return Ok(name.clone());
        }
        self.make_room();
        let before = self.addresses.borrow().get(host).copied();
        let address = match before {
            Some(address) => address,
            None => self.next(host)?,
        };
        let name = Rc::new(Name {
            address,
            used: Cell::new(Instant::now()),
            listeners: RefCell::default(),
            turn: tokio::sync::Mutex::default(),
        });
        self.known.borrow_mut().insert(host.clone(), name.clone());
        Ok(name)
    }

    fn make_room(&self) {
        let mut known = self.known.borrow_mut();
        if known.len() < MAX_NAMES {
            return;
        }
        let oldest = known.iter().min_by_key(|(_, name)| name.used.get());
        if let Some(host) = oldest.map(|(host, _)| host.clone())
            && let Some(name) = known.remove(&host)
        {
            name.close(|_| false);
        }
    }

    fn next(&self, host: &Host) -> io::Result<Ipv4Addr> {
        let mut given = self.given.borrow_mut();
        let address = Ipv4Addr::from_bits(NAMES_FIRST.to_bits() + given.len() as u32);
        if given.len() >= MAX_GIVEN || address > NAMES_LAST {
            return Err(io::Error::other("all addresses were handed out"));
        }
        given.push(host.clone());
        self.addresses.borrow_mut().insert(host.clone(), address);
        Ok(address)
    }

    /// New rules: what is not allowed any more loses its listeners at once, and what is allowed now
    /// gets them.
    pub(crate) async fn follow_rules(gate: &Rc<Gate>) {
        let known: Vec<_> = {
            let known = gate.names.known.borrow();
            known
                .iter()
                .map(|(host, name)| (host.clone(), name.clone()))
                .collect()
        };
        for (host, name) in &known {
            let ports = gate.rules().ports(host);
            name.close(|port| ports.contains(&port));
        }
        for (host, name) in &known {
            // A guest that is gone is seen elsewhere.
            listen_for(gate, host, name).await.ok();
        }
    }
}

async fn listen_for(gate: &Rc<Gate>, host: &Host, name: &Rc<Name>) -> io::Result<()> {
    let _turn = name.turn.lock().await;
    let ports = gate.rules().ports(host);
    let mut failed = None;
    for port in ports.into_iter().take(MAX_PORTS) {
        if name.listeners.borrow().contains_key(&port) {
            continue;
        }
        let listener = match listen::listener(gate, name.address, port).await {
            Ok(listener) => listener,
            // Something inside may have taken the port; the others are still good.
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        let serve = {
            let (gate, host, name) = (gate.clone(), host.clone(), name.clone());
            move |stream| {
                name.used.set(Instant::now());
                let flow = Flow {
                    gate: gate.clone(),
                    via: Via::Direct,
                    host: host.clone(),
                    port,
                };
                connect::serve(flow, Prefixed::new(stream))
            }
        };
        let task = spawn_local(listen::accept(gate.clone(), listener, serve));
        name.listeners
            .borrow_mut()
            .insert(port, task.abort_handle());
    }
    // Rules may have changed while the guest was asked.
    let ports = gate.rules().ports(host);
    name.close(|port| ports.contains(&port));
    match failed {
        Some(error) if name.listeners.borrow().is_empty() => Err(error),
        _ => Ok(()),
    }
}
