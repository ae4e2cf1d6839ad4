//! The direct tools of a sandbox: `ringfence-tools ROOT VERB`.
//!
//! One JSON request on standard input, one JSON answer on standard output, exit 0 for `ok` and 1
//! for `error`. It runs inside, as the agent, started like any other command: it can do nothing
//! that the agent could not do itself. What it adds is that paths stay beneath ROOT, that files
//! change whole or not at all, and that an answer has a bound. Nobody else inside can answer in its
//! place: it hides its descriptors and memory from the agent, as pid 1 does.
//!
//! The types of both sides are in `ringfence_model::tools`. `--pack ROOT` and `--unpack ROOT` are not for
//! agents: they carry a workspace to an engine of another machine and back.

mod content;
mod edit;
mod failure;
mod glob;
mod list;
mod measure;
mod names;
mod parcel;
mod patch;
mod place;
mod read;
mod search;
#[path = "../tree.rs"]
#[allow(dead_code, reason = "each program uses its own part")]
mod tree;
mod walk;
mod write;

#[cfg(test)]
mod testing;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use failure::{Hint as _, Outcome, invalid, too_large};
use place::Root;
use ringfence_model::tools::{Answer, MAX_REQUEST, MAX_RESPONSE, Verb};
use rustix::process::DumpableBehavior;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn main() -> ExitCode {
    // HOSTILE: the agent has our uid. Where this is refused, nothing is answered at all.
    if rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return ExitCode::from(2);
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [verb, root] = &arguments[..]
        && let Some(verb @ ("--pack" | "--unpack")) = verb.to_str()
    {
        return match parcel::run(verb, root.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let (answer, code) = match answer(&arguments) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(failure) => {
            let answer: Answer<()> = Answer::Error(failure);
            (
                serde_json::to_vec(&answer).unwrap_or_default(),
                ExitCode::FAILURE,
            )
        }
    };
    let mut out = io::stdout().lock();
    let written = out
        .write_all(&answer)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    match written {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(arguments: &[OsString]) -> Outcome<Vec<u8>> {
    let [root, verb] = arguments else {
        return Err(invalid("needs two arguments: ROOT and VERB".to_owned()));
    };
    let Some(verb) = verb.to_str().and_then(Verb::parse) else {
        let names = Verb::ALL.map(Verb::name).join(", ");
        return Err(invalid(format!("there is no verb `{}`", verb.display()))
            .hint(format!("one of {names}")));
    };
    let root = Root::open(root.as_ref())?;
    let request = request()?;
    match verb {
        Verb::Read => run(&root, &request, read::read),
        Verb::Write => run(&root, &request, write::write),
        Verb::Edit => run(&root, &request, edit::edit),
        Verb::Patch => run(&root, &request, patch::patch),
        Verb::List => run(&root, &request, list::list),
        Verb::Glob => run(&root, &request, glob::glob),
        Verb::Search => run(&root, &request, search::search),
        Verb::Stat => run(&root, &request, names::stat),
        Verb::Mkdir => run(&root, &request, names::mkdir),
        Verb::Remove => run(&root, &request, names::remove),
        Verb::Move => run(&root, &request, names::rename),
    }
}

/// All of standard input, within its bound.
fn request() -> Outcome<Vec<u8>> {
    let mut request = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_REQUEST as u64 + 1)
        .read_to_end(&mut request)
        .map_err(|error| invalid(format!("cannot read the request: {error}")))?;
    if request.len() > MAX_REQUEST {
        return Err(too_large(format!(
            "the request is over its bound of {MAX_REQUEST} bytes"
        )));
    }
    Ok(request)
}

fn run<Q: DeserializeOwned, A: Serialize>(
    root: &Root,
    request: &[u8],
    tool: fn(&Root, Q) -> Outcome<A>,
) -> Outcome<Vec<u8>> {
    let request = serde_json::from_slice(request)
        .map_err(|error| invalid(format!("the request cannot be read: {error}")))?;
    let answer = Answer::Ok(tool(root, request)?);
    let answer = serde_json::to_vec(&answer)
        .map_err(|error| failure::internal(format!("the answer cannot be written: {error}")))?;
    // Each tool keeps to the bound itself; this is the last look.
    if answer.len() >= MAX_RESPONSE {
        return Err(too_large(format!(
            "the answer is over its bound of {MAX_RESPONSE} bytes"
        )));
    }
    Ok(answer)
}
