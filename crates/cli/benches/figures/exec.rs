//! A command in a sandbox that runs already, against one started outside.

use std::process::Command;

use anyhow::Result;

use crate::place::{Place, exec_true, outside};
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

/// BOUND: each round takes two milliseconds.
const ROUNDS: usize = 500;

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let (mut sandbox, layer) = place.sandbox()?;
    let mut contenders = [
        Contender::new("fork, exec, wait outside", || {
            outside(&mut Command::new("/bin/true"))
        }),
        Contender::new("the same, output read", || {
            Command::new("/bin/true").output()?;
            Ok(())
        }),
        Contender::new("exec inside", || exec_true(&mut sandbox)),
    ];
    let [plain, read, inside] = &in_turn(ROUNDS, &mut contenders)?[..] else {
        unreachable!("three contenders give three samples");
    };
    table.times(&contenders[0].name, plain);
    table.times(&contenders[1].name, read);
    let against = Against {
        name: "outside",
        samples: plain,
        bound: Bound::times(1.3),
    };
    table.held(&contenders[2].name, inside, against);
    drop(contenders);
    sandbox.end()?;
    layer.remove()
}
