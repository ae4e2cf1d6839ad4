//! A sandbox that runs already: commands through its keeper, rollbacks, and starting it again.

use std::cell::Cell;
use std::process::Command;

use anyhow::Result;
use ringfence_engine::sandboxes::rollback::rollback;
use ringfence_engine::sandboxes::seal::checkpoint;
use ringfence_engine::sandboxes::stop::{resume, stop};

use crate::lasting::{self, SMALL};
use crate::peers::{self, BWRAP};
use crate::place::{Place, outside};
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const ROUNDS: usize = 60;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let host = lasting::host(place)?;
    let from = lasting::from_commit(&SMALL.repository(place)?)?;
    let id = lasting::sandbox(&host, &from)?;
    lasting::shell(&host, id, ":")?;
    let words = ["sandbox", "exec", id.as_str(), "--", "true"];
    let mut exec = place.program_at(&host.home, &words);
    let resumed = lasting::sandbox(&host, &from)?;
    let rolled = Cell::new(lasting::sandbox(&host, &from)?);
    let mut contenders = [
        Contender::new("spawn of true outside", || {
            Command::new("/bin/true").output()?;
            Ok(())
        }),
        Contender::new(BWRAP, || outside(&mut peers::bwrap())),
        Contender::new("exec of true, in process", || {
            lasting::command(&host, id, &["/bin/true"])
        }),
        Contender::new("ringfence sandbox exec -- true", || outside(&mut exec)),
        Contender::new("resume", || {
            resume(&host, resumed)?;
            Ok(())
        })
        .after(|| {
            stop(&host, resumed)?;
            Ok(())
        }),
        Contender::new("rollback, stopped, dirty", || {
            rollback(&host, rolled.get(), "here")?;
            Ok(())
        })
        .after(|| {
            rolled.set(lasting::sandbox(&host, &from)?);
            checkpoint(&host, rolled.get(), "here")?;
            lasting::soil(&host, rolled.get())
        }),
    ];
    let times = in_turn(ROUNDS, &mut contenders)?;
    let against = |other: usize, name, bound| Against {
        name,
        samples: &times[other],
        bound: Bound::times(bound),
    };
    let name = |number: usize| contenders[number].name.as_str();
    table.times(name(0), &times[0]);
    table.times(name(1), &times[1]);
    table.held(name(2), &times[2], against(0, "outside", 3.0));
    table.held(name(3), &times[3], against(1, BWRAP, 3.0));
    table.held(name(4), &times[4], against(1, BWRAP, 5.0));
    table.times(name(5), &times[5]);
    if outside(&mut peers::docker()).is_err() {
        table.note("docker exec: no daemon answers");
    }
    drop(contenders);
    for id in [id, resumed] {
        stop(&host, id)?;
    }
    Ok(())
}
