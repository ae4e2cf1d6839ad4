//! Execs as a tree: who started whom, what they tried in vain, and what they wrote.
//!
//! INVARIANT: nothing here recurses. A chain of a hundred thousand execs is as deep as it is long.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::journal::Event;
use ringfence_model::observed::{ExecFailed, Refused, Write};

use super::{Filter, Story};
use crate::evidence::Ran;

/// One line of the tree.
#[derive(Clone, Copy, Debug)]
pub enum Twig<'a> {
    Ran(&'a Ran),
    Failed(&'a ExecFailed),
    Refused(&'a Refused),
    Wrote(&'a Write),
}

/// A line with its place.
#[derive(Debug)]
pub struct Branch<'a, 'b> {
    pub twig: Twig<'a>,
    /// For each level above, from the root: whether more follows there after this line's branch.
    /// The last one is this line's own.
    pub rails: &'b [bool],
}

/// What a filter wants of a story, each under whoever did it, with those that led to it.
#[derive(Debug)]
pub struct Tree<'a> {
    /// By exec, with their places in the journal; those without one, or whose exec is not known,
    /// are under none.
    under: BTreeMap<Option<u64>, Vec<(usize, Twig<'a>)>>,
}

impl<'a> Tree<'a> {
    pub fn of(story: &'a Story, filter: &Filter) -> Self {
        let known = |exec: Option<u64>| exec.filter(|&exec| story.exec(exec).is_some());
        let before = |ran: &Ran| story.starter(&ran.exec).map(|before| before.exec.exec);
        // The last exec that each process was.
        let mut processes: BTreeMap<i32, u64> = BTreeMap::new();
        let mut under: BTreeMap<Option<u64>, Vec<(usize, Twig<'a>)>> = BTreeMap::new();
        let mut wanted: BTreeSet<u64> = BTreeSet::new();
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        for (place, line) in story.lines.iter().enumerate() {
            let is_wanted = filter.wants(story, &line.event);
            let (twig, by) = match &line.event {
                Event::Exec(exec) => {
                    processes.insert(exec.pid, exec.exec);
                    places.insert(exec.exec, place);
                    if is_wanted {
                        wanted.insert(exec.exec);
                    }
                    continue;
                }
                Event::ExecFailed(failed) => (Twig::Failed(failed), known(failed.by)),
                Event::Denial(refused) => {
                    let by = processes.get(&refused.pid).copied();
                    (Twig::Refused(refused), by)
                }
                // Writes are many: only where they are asked for.
                Event::Write(write) if filter.writes => (Twig::Wrote(write), known(write.exec)),
                _ => continue,
            };
            if is_wanted {
                wanted.extend(by);
                under.entry(by).or_default().push((place, twig));
            }
        }
        // Numbers only ever grow, so that one pass from the last one finds all that led to them.
        for ran in story.evidence.execs.values().rev() {
            if wanted.contains(&ran.exec.exec) {
                let by = before(ran);
                wanted.extend(by);
                let place = places.get(&ran.exec.exec).copied().unwrap_or_default();
                under.entry(by).or_default().push((place, Twig::Ran(ran)));
            }
        }
        for twigs in under.values_mut() {
            twigs.sort_by_key(|(place, _)| *place);
        }
        Self { under }
    }

    pub fn is_empty(&self) -> bool {
        self.under.is_empty()
    }

    /// Gives each line from top to bottom, until one is refused.
    pub fn walk<E>(&self, mut each: impl FnMut(&Branch<'a, '_>) -> Result<(), E>) -> Result<(), E> {
        let twigs = |by: Option<u64>| self.under.get(&by).map_or(&[][..], Vec::as_slice);
        let mut open = vec![twigs(None).iter()];
        let mut rails: Vec<bool> = Vec::new();
        while let Some(level) = open.last_mut() {
            let Some(&(_, twig)) = level.next() else {
                open.pop();
                rails.pop();
                continue;
            };
            rails.push(level.len() > 0);
            each(&Branch {
                twig,
                rails: &rails,
            })?;
            match twig {
                Twig::Ran(ran) => open.push(twigs(Some(ran.exec.exec)).iter()),
                _ => {
                    rails.pop();
                }
            }
        }
        Ok(())
    }
}
