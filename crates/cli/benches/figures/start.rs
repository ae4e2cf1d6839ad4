//! A fresh sandbox, a command that does nothing, and gone: in process, and by the whole program.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peers::{self, BWRAP, SANDLOCK};
use crate::place::{Place, exec_true, outside};
use crate::sample::{Contender, Samples, in_turn};
use crate::table::{Against, Bound, Table};

/// BOUND: enough that one slow round of a busy machine does not move a median.
const ROUNDS: usize = 60;
/// What the life of a sandbox consists of, in order.
const PARTS: [&str; 6] = ["layers", "start", "prove", "exec", "end", "remove layers"];

pub fn in_process(place: &Place, table: &mut Table) -> Result<()> {
    let parts = RefCell::new([const { Vec::new() }; PARTS.len()]);
    let ours = Contender::new("ringfence, in process", || {
        let times = once(place)?;
        for (all, time) in parts.borrow_mut().iter_mut().zip(times) {
            all.push(time);
        }
        Ok(())
    });
    let storage = place.beside("storage")?;
    let (peers, missing) = peers::all(&place.folder(), &storage);
    let bounds = [(BWRAP, Bound::times(1.5)), (SANDLOCK, Bound::times(1.0))];
    compare(table, ours, peers, &bounds)?;
    for (name, times) in PARTS.into_iter().zip(parts.into_inner()) {
        table.times(&format!("  of it: {name}"), &Samples::new(times));
    }
    for line in missing {
        table.note(&line);
    }
    Ok(())
}

/// One sandbox from nothing to nothing, and how long each part of it took.
fn once(place: &Place) -> Result<[Duration; PARTS.len()]> {
    let mut last = Instant::now();
    let mut lap = || {
        let began = std::mem::replace(&mut last, Instant::now());
        last.duration_since(began)
    };
    let layer = place.layer()?;
    let layers = lap();
    let mut sandbox = place.start(&layer)?;
    let start = lap();
    place.prove(&mut sandbox)?;
    let prove = lap();
    exec_true(&mut sandbox)?;
    let exec = lap();
    sandbox.end()?;
    let end = lap();
    layer.remove()?;
    Ok([layers, start, prove, exec, end, lap()])
}

pub fn whole_program(place: &Place, table: &mut Table) -> Result<()> {
    let mut command = place.whole_program();
    let ours = Contender::new("ringfence run -- true", move || outside(&mut command));
    let bwrap = Contender::new(BWRAP, || outside(&mut peers::bwrap()));
    compare(table, ours, vec![bwrap], &[(BWRAP, Bound::times(3.0))])
}

/// Times ours and its peers in turn, and holds ours against those that have a bound.
fn compare<'a>(
    table: &mut Table,
    ours: Contender<'a>,
    peers: Vec<Contender<'a>>,
    bounds: &[(&str, Bound)],
) -> Result<()> {
    let mut contenders = vec![ours];
    contenders.extend(peers);
    let all: Vec<Samples> = in_turn(ROUNDS, &mut contenders)?;
    let mut named = contenders.iter().map(|c| c.name.as_str()).zip(&all);
    let (name, samples) = named.next().expect("ours is the first");
    let peers: Vec<_> = named.collect();
    for &(peer, others) in &peers {
        table.times(peer, others);
        if let Some(&(_, bound)) = bounds.iter().find(|(bounded, _)| *bounded == peer) {
            let against = Against {
                name: peer,
                samples: others,
                bound,
            };
            table.held(name, samples, against);
        }
    }
    Ok(())
}
