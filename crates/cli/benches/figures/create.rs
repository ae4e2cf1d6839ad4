//! A second sandbox on a repository that is cached, against one on nothing.

use anyhow::Result;
use ringfence_engine::sandboxes::create::From;

use crate::lasting::{self, Tree};
use crate::place::Place;
use crate::sample::{Contender, in_turn};
use crate::table::{Against, Bound, Table};

const ROUNDS: usize = 30;
/// BOUND: it is checked out for each way to name it.
const CACHED: Tree = Tree {
    files: 5_000,
    bytes: 2 << 10,
};
const BOUND: Bound = Bound::times(1.5);

pub fn measure(place: &Place, table: &mut Table) -> Result<()> {
    let host = lasting::host(place)?;
    let repository = CACHED.repository(place)?;
    let path = repository.to_string_lossy().into_owned();
    let commit = lasting::head(&repository)?;
    let at = |typed: String, revision: &str| From::Repository {
        typed,
        revision: Some(revision.to_owned()),
    };
    let all = [
        ("on nothing", From::Empty),
        ("on a commit of a path", at(path.clone(), &commit)),
        (
            "on a commit of a URL",
            at(format!("file://{path}"), &commit),
        ),
        ("on a branch of a path", at(path.clone(), "main")),
        ("on a branch of a URL", at(format!("file://{path}"), "main")),
    ];
    // The first one of each fetches and checks out.
    for (_, from) in &all {
        lasting::sandbox(&host, from)?;
    }
    let mut contenders: Vec<_> = all
        .iter()
        .map(|(name, from)| Contender::new(*name, || lasting::sandbox(&host, from).map(drop)))
        .collect();
    let times = in_turn(ROUNDS, &mut contenders)?;
    for (number, (contender, samples)) in contenders.iter().zip(&times).enumerate() {
        if number == 0 {
            table.times(&contender.name, samples);
            continue;
        }
        let against = Against {
            name: "nothing",
            samples: &times[0],
            bound: BOUND,
        };
        table.held(&contender.name, samples, against);
    }
    let commands = [
        ("create --empty", vec!["--empty"]),
        (
            "create --base COMMIT",
            vec!["--repo", &path, "--base", &commit],
        ),
        (
            "create --base BRANCH",
            vec!["--repo", &path, "--base", "main"],
        ),
    ];
    let mut contenders: Vec<_> = commands
        .iter()
        .map(|(name, words)| {
            let mut all = vec!["sandbox", "create"];
            all.extend(words);
            let mut command = place.program_at(&host.home, &all);
            Contender::new(*name, move || crate::place::outside(&mut command))
        })
        .collect();
    let times = in_turn(ROUNDS, &mut contenders)?;
    table.times(&contenders[0].name, &times[0]);
    for number in 1..times.len() {
        let against = Against {
            name: "--empty",
            samples: &times[0],
            bound: BOUND,
        };
        table.held(&contenders[number].name, &times[number], against);
    }
    table.note("a branch has to be asked for: that is a `git fetch`, whatever is cached");
    Ok(())
}
