//! Which toolchains a project needs: of each program the one that the user would get.

use ringfence_model::init::Need;
use serde::Serialize;

use super::{Toolchain, is_in_the_system, is_of_the_system};
use crate::presets::Surroundings;

/// Where a program that is needed comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    pub program: String,
    /// Why it is needed.
    pub why: String,
    pub from: Chosen,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Chosen {
    /// Nothing has to be granted.
    System,
    /// The toolchain at this place of the list.
    Toolchain(usize),
    Nowhere,
}

/// Where each program comes from.
pub fn choose(around: &Surroundings, found: &[Toolchain], needs: &[Need]) -> Vec<Choice> {
    let choice = |need: &Need| Choice {
        program: need.program.clone(),
        why: need.why.clone(),
        from: one(around, found, need),
    };
    needs.iter().map(choice).collect()
}

fn one(around: &Surroundings, found: &[Toolchain], need: &Need) -> Chosen {
    let brings: Vec<usize> = (0..found.len())
        .filter(|at| found[*at].brings(&need.program))
        .collect();
    // What the user gets when he types it.
    let typed = around.program(&need.program);
    let own = typed.as_ref().filter(|path| !is_of_the_system(path));
    let of_path = own.and_then(|path| {
        let is_it = |at: &&usize| {
            let mut directories = found[**at].path.iter();
            directories.any(|directory| path.starts_with(directory))
        };
        brings.iter().find(is_it).or(brings.first())
    });
    let pinned = need.version.as_ref().and_then(|version| {
        let holds = |at: &&usize| found[**at].why == version.why;
        brings.iter().find(holds)
    });
    match pinned.or(of_path) {
        Some(at) => Chosen::Toolchain(*at),
        None if is_in_the_system(&need.program) => Chosen::System,
        None => brings
            .first()
            .map_or(Chosen::Nowhere, |at| Chosen::Toolchain(*at)),
    }
}
