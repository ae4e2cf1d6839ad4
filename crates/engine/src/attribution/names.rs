//! The names of the workspace as the writes tell of them: each write is done again, on names alone.
//!
//! Whether the kernel agreed to a call is not known. So a name keeps its history when something is
//! said to have left it, and gets the other name's history in addition to its own when something is
//! said to have come: where a call had failed, nothing is lost.
//!
//! Nothing here recurses, and each write costs what its path is long, and what of a directory that
//! moved had been written to.

use std::collections::BTreeMap;

use ringfence_model::observed::{Write, Wrote};

use super::history::{At, Deed, Deeds, Did, Histories, Name};

/// BOUND: names carried along with directories that move, in all. A build that renames its
/// directories carries some thousands.
const CARRIED_NAMES: usize = 1_000_000;
/// BOUND: names of one file that are told of what is written through another.
const SHARED_NAMES: usize = 64;

const ROOT: Name = Name(0);
const GONE: Deeds = Deeds::of(&[Did::Removed, Did::Away]);

#[derive(Debug)]
struct Node {
    parent: Name,
    children: BTreeMap<Box<[u8]>, Name>,
    latest: Option<At>,
    /// Its hard links.
    shares: Option<usize>,
    /// When it was last the place that something moved to, and from.
    landed: Option<At>,
    away: Option<At>,
}

impl Node {
    fn below(parent: Name) -> Self {
        Self {
            parent,
            children: BTreeMap::new(),
            latest: None,
            shares: None,
            landed: None,
            away: None,
        }
    }
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub name: Option<Name>,
    pub latest: Option<At>,
    /// The last time that a directory above came here, and went from here.
    pub landed_above: Option<At>,
    pub away_above: Option<At>,
}

/// All names that a write was about.
#[derive(Debug)]
pub(super) struct Names {
    nodes: Vec<Node>,
    shared: Vec<Vec<Name>>,
    pub histories: Histories,
    left_to_carry: usize,
}

/// A name whose content goes to another.
struct Carried {
    /// Named by the call itself, not by a directory above.
    named: bool,
    from: Name,
    to: Name,
    latest: Option<At>,
    shares: Option<usize>,
}

impl Names {
    /// Does all writes again.
    pub fn of<'w>(writes: impl Iterator<Item = &'w Write>) -> Self {
        let mut names = Self {
            nodes: vec![Node::below(ROOT)],
            shared: Vec::new(),
            histories: Histories::default(),
            left_to_carry: CARRIED_NAMES,
        };
        for (write, number) in writes.zip(0..) {
            names.take(number, write);
        }
        names
    }

    fn take(&mut self, number: u32, write: &Write) {
        let deed = |did| Deed {
            did,
            exec: write.exec.unwrap_or(0),
            write: number,
        };
        // Its path is a name that was asked for, and nothing of the workspace's.
        if write.what == Wrote::Unplaced {
            return;
        }
        let name = self.make(write.path.as_bytes());
        match &write.what {
            Wrote::Renamed { from } => {
                let from = self.make(from.as_bytes());
                self.rename(from, name, deed);
            }
            Wrote::Exchanged { with } => {
                let with = self.make(with.as_bytes());
                self.exchange(name, with, deed);
            }
            Wrote::Linked { to } => {
                let to = self.make(to.as_bytes());
                self.link(name, to, deed);
            }
            what => {
                if let Some(name) = name {
                    self.plain(name, what, deed);
                }
            }
        }
    }

    fn plain(&mut self, name: Name, what: &Wrote, deed: impl Fn(Did) -> Deed) {
        let did = match what {
            Wrote::Opened => Did::Opened,
            Wrote::Created => Did::Created,
            Wrote::Truncated => Did::Truncated,
            Wrote::Symlinked => Did::Symlinked,
            Wrote::Removed => Did::Removed,
            Wrote::Mode => Did::Mode,
            Wrote::MadeNode => Did::Noded,
            Wrote::Renamed { .. }
            | Wrote::Exchanged { .. }
            | Wrote::Linked { .. }
            | Wrote::Unplaced => return,
        };
        // What is done to a file is done to it under all its names; what is done to an entry not.
        if matches!(did, Did::Opened | Did::Truncated | Did::Mode) {
            let shares = self.nodes[name.0 as usize].shares;
            let others = shares.map_or_else(Vec::new, |at| self.shared[at].clone());
            for other in others.into_iter().filter(|&other| other != name) {
                self.add(other, deed(did), None, None);
            }
        } else {
            self.unshare(name);
        }
        self.add(name, deed(did), None, None);
    }

    fn rename(&mut self, from: Option<Name>, to: Option<Name>, deed: impl Fn(Did) -> Deed) {
        match (from, to) {
            (Some(from), Some(to)) => {
                let carried = self.carried(from, to);
                self.move_all(&carried, deed);
            }
            // From or to a place outside.
            (Some(from), None) => self.add(from, deed(Did::Away), None, None),
            (None, Some(to)) => {
                self.unshare(to);
                self.add(to, deed(Did::Landed), None, None);
            }
            (None, None) => {}
        }
    }

    fn exchange(&mut self, one: Option<Name>, other: Option<Name>, deed: impl Fn(Did) -> Deed) {
        let (Some(one), Some(other)) = (one, other) else {
            self.rename(one, other, &deed);
            return self.rename(other, one, deed);
        };
        let mut carried = self.carried(one, other);
        carried.extend(self.carried(other, one));
        self.move_all(&carried, deed);
    }

    fn link(&mut self, name: Option<Name>, to: Option<Name>, deed: impl Fn(Did) -> Deed) {
        let Some(name) = name else {
            return;
        };
        self.unshare(name);
        let source = to.and_then(|to| self.nodes[to.0 as usize].latest);
        self.add(name, deed(Did::Linked), to, source);
        let Some(to) = to.filter(|&to| to != name) else {
            return;
        };
        self.add(to, deed(Did::Shared), Some(name), None);
        let shares = match self.nodes[to.0 as usize].shares {
            Some(at) => at,
            None => {
                self.shared.push(vec![to]);
                self.nodes[to.0 as usize].shares = Some(self.shared.len() - 1);
                self.shared.len() - 1
            }
        };
        if self.shared[shares].len() < SHARED_NAMES {
            self.shared[shares].push(name);
            self.nodes[name.0 as usize].shares = Some(shares);
        }
    }

    /// The name and all below it, with where they go. Empty where no kernel would do it.
    fn carried(&mut self, from: Name, to: Name) -> Vec<Carried> {
        let mut list = Vec::new();
        if self.is_at_or_above(from, to) || self.is_at_or_above(to, from) {
            return list;
        }
        let mut stack = vec![(from, to)];
        while let Some((from, to)) = stack.pop() {
            let node = &self.nodes[from.0 as usize];
            list.push(Carried {
                named: list.is_empty(),
                from,
                to,
                latest: node.latest,
                shares: node.shares,
            });
            let below: Vec<(Box<[u8]>, Name)> = node
                .children
                .iter()
                .take(self.left_to_carry)
                .map(|(part, &child)| (part.clone(), child))
                .collect();
            self.left_to_carry -= below.len();
            for (part, child) in below {
                if self.is_there(child) {
                    let landing = self.child(to, &part);
                    stack.push((child, landing));
                }
            }
        }
        list
    }

    fn is_at_or_above(&self, above: Name, name: Name) -> bool {
        let mut at = name;
        while at != above && at != ROOT {
            at = self.nodes[at.0 as usize].parent;
        }
        at == above
    }

    /// Not known to have gone. A directory that nothing was done to counts.
    fn is_there(&self, name: Name) -> bool {
        let latest = self.nodes[name.0 as usize].latest;
        !latest.is_some_and(|at| Deeds::of(&[self.histories.entry(at).did]).meets(GONE))
    }

    fn move_all(&mut self, carried: &[Carried], deed: impl Fn(Did) -> Deed) {
        let touched = |moved: &&Carried| moved.named || moved.latest.is_some();
        for moved in carried.iter().filter(touched) {
            self.unshare(moved.from);
            self.add(moved.from, deed(Did::Away), Some(moved.to), None);
        }
        for moved in carried.iter().filter(touched) {
            self.unshare(moved.to);
            let (from, latest) = (Some(moved.from), moved.latest);
            self.add(moved.to, deed(Did::Landed), from, latest);
            if let Some(shares) = moved.shares {
                self.shared[shares].push(moved.to);
                self.nodes[moved.to.0 as usize].shares = Some(shares);
            }
        }
    }

    fn unshare(&mut self, name: Name) {
        if let Some(at) = self.nodes[name.0 as usize].shares.take() {
            self.shared[at].retain(|&other| other != name);
        }
    }

    fn add(&mut self, name: Name, deed: Deed, other: Option<Name>, source: Option<At>) {
        let node = &mut self.nodes[name.0 as usize];
        let at = self.histories.add(node.latest, deed, other, source);
        node.latest = Some(at);
        match deed.did {
            Did::Landed => node.landed = Some(at),
            Did::Away => node.away = Some(at),
            _ => {}
        }
    }

    fn make(&mut self, path: &[u8]) -> Option<Name> {
        let mut name = ROOT;
        for part in parts(path)? {
            name = self.child(name, part);
        }
        (name != ROOT).then_some(name)
    }

    fn child(&mut self, name: Name, part: &[u8]) -> Name {
        let next = Name(u32::try_from(self.nodes.len()).expect("names are bounded"));
        let node = &mut self.nodes[name.0 as usize];
        if let Some(&child) = node.children.get(part) {
            return child;
        }
        node.children.insert(part.into(), next);
        self.nodes.push(Node::below(name));
        next
    }

    /// Directories that moved had more in them than was carried along.
    pub fn is_cut(&self) -> bool {
        self.left_to_carry == 0
    }

    /// What is known of a directory, as one that is above something.
    pub fn above(&self, directory: &[u8]) -> Known {
        let mut known = Known {
            name: Some(ROOT),
            ..Known::default()
        };
        for part in parts(directory).into_iter().flatten() {
            known = self.below(&known, part);
            let Some(name) = known.name else {
                break;
            };
            let node = &self.nodes[name.0 as usize];
            known.landed_above = known.landed_above.max(node.landed);
            known.away_above = known.away_above.max(node.away);
        }
        known
    }

    /// What is known of an entry of such a directory.
    pub fn below(&self, directory: &Known, part: &[u8]) -> Known {
        let children = directory
            .name
            .map(|name| &self.nodes[name.0 as usize].children);
        let name = children.and_then(|children| children.get(part)).copied();
        Known {
            name,
            latest: name.and_then(|name| self.nodes[name.0 as usize].latest),
            ..*directory
        }
    }

    /// The name of a path, where a write was about it.
    pub fn find(&self, path: &[u8]) -> Option<Name> {
        let mut name = ROOT;
        for part in parts(path)? {
            name = *self.nodes[name.0 as usize].children.get(part)?;
        }
        Some(name)
    }
}

/// The parts of a path below the workspace; `None` for one outside.
fn parts(path: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    if path.starts_with(b"/") {
        return None;
    }
    Some(
        path.split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty() && *part != b"."),
    )
}
