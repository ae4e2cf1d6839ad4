//! Whether the parts of a bundle say the same: manifest, journal, result and statement.

use ringfence_model::bundle::attestation::Statement;
use ringfence_model::bundle::{
    FileDigest, LISTED, Manifest, PATCH, SCHEMA, TreeIdentity, change_set_sha256, sha256_hex,
};
use ringfence_model::check::{CheckReport, Examined};
use ringfence_model::journal::{Event, Line, Lines, measured};
use ringfence_model::{ByteText, strict};

use super::files::Contents;
use crate::ids::RunId;
use crate::run::RunResult;

/// Reads a manifest whose version is known, and checks what it says of itself.
pub(super) fn manifest(text: &[u8]) -> Result<Manifest, String> {
    // The version first: a later one may have fields that nobody knows here.
    let version: Option<serde_json::Value> = serde_json::from_slice(text).ok();
    let version = version.and_then(|value| value.get("schema").cloned());
    if let Some(version) = version.filter(|version| *version != SCHEMA) {
        let version: String = version.to_string().chars().take(20).collect();
        return Err(format!("schema {version} is not known; {SCHEMA} is"));
    }
    let manifest: Manifest = strict::parse(text).map_err(|error| chain(&error))?;
    if manifest.run.parse::<RunId>().is_err() {
        return Err("its run has no id".to_owned());
    }
    let names: Vec<&str> = manifest.files.iter().map(|file| &file.name[..]).collect();
    if names != LISTED {
        return Err("it lists other files".to_owned());
    }
    if manifest.policy.sha256() != manifest.policy_sha256 {
        return Err("its policy has another hash".to_owned());
    }
    Ok(manifest)
}

/// The causes of an error in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Sizes and hashes.
pub(super) fn hashes(manifest: &Manifest, contents: &Contents) -> Result<(), String> {
    for FileDigest { name, size, sha256 } in &manifest.files {
        let bytes = contents.of(name);
        if bytes.len() as u64 != *size {
            let length = bytes.len();
            return Err(format!("`{name}` has {length} bytes instead of {size}"));
        }
        if sha256_hex(bytes) != *sha256 {
            return Err(format!("`{name}` has another hash"));
        }
    }
    Ok(())
}

/// The chain, its end and its length.
pub(super) fn journal(manifest: &Manifest, text: &[u8]) -> Result<Vec<Line>, String> {
    let mut checked = Lines::new(text);
    let lines: Vec<Line> = checked
        .by_ref()
        .collect::<Result<_, _>>()
        .map_err(|error| chain(&error))?;
    if checked.head() != manifest.journal.head || lines.len() as u64 != manifest.journal.lines {
        return Err("it ends elsewhere than the manifest says".to_owned());
    }
    let ends = matches!(lines.last().map(|l| &l.event), Some(Event::End { .. }));
    let begins = matches!(lines.first().map(|l| &l.event), Some(Event::Task { .. }));
    if begins && ends {
        Ok(lines)
    } else {
        Err("it does not go from the task to the end".to_owned())
    }
}

/// Holds a result against the manifest, and against the journal where that could be read.
pub(super) fn result(
    result: &RunResult,
    manifest: &Manifest,
    lines: Option<&[Line]>,
) -> Result<(), String> {
    let backend = &manifest.backend;
    let patch = manifest.sha256(PATCH).unwrap_or_default();
    // In the manifest and in the result.
    for (what, good) in [
        ("run", result.run.as_str() == manifest.run),
        ("name", result.name == manifest.name),
        ("patch", result.patch_sha256 == patch),
        ("journal", result.journal_head == manifest.journal.head),
        ("limits", result.limits == backend.limits),
        ("wall", result.wall == backend.wall),
        ("probes", result.probes as u64 == backend.probes),
        ("changed files", result.changed_files == distinct(result)),
    ] {
        if !good {
            return Err(format!("its {what} is not what the manifest says"));
        }
    }
    if let TreeIdentity::ChangeSet { sha256 } = &manifest.tree
        && change_set_sha256(&result.changes).as_ref() != Some(sha256)
    {
        return Err("its change set is not the one in the manifest".to_owned());
    }
    let Some(lines) = lines else {
        return Ok(());
    };
    for expected in events(result, manifest) {
        let kind = std::mem::discriminant(&expected);
        let mut same_kind = lines
            .iter()
            .map(|line| &line.event)
            .filter(|event| std::mem::discriminant(*event) == kind);
        let told = same_kind.next();
        let same = told.is_some_and(|told| *told == expected || *told == unmeasured(&expected));
        if !same || same_kind.next().is_some() {
            return Err(format!("the journal tells another {}", word(&expected)));
        }
    }
    let mut probes = Vec::new();
    let mut met = Vec::new();
    for line in lines {
        match &line.event {
            Event::Proof { probes: told } => {
                let tried = told.iter().filter(|probe| !probe.is_left_out());
                probes.extend(tried.map(|probe| probe.held));
            }
            Event::Limit { limit, detail } => met.push((*limit, detail.clone())),
            _ => {}
        }
    }
    if probes != vec![true; result.probes] {
        return Err("the journal tells another proof".to_owned());
    }
    if met != result.limit_hits {
        return Err("the journal tells of other limits that were met".to_owned());
    }
    let told = lines.iter().map(|line| &line.event);
    let told = told.filter(|event| matches!(event, Event::IterationEnded { .. }));
    let iterations = result.rounds.iter().flat_map(|own| &own.iterations);
    if !told
        .cloned()
        .eq(iterations.map(crate::run::iteration_ended))
    {
        return Err("the journal tells of other iterations".to_owned());
    }
    if checks(result, manifest, lines) {
        Ok(())
    } else {
        Err("the journal tells of other checks".to_owned())
    }
}

/// Whether each check that the policy asks for is reported, as the journal tells it.
fn checks(result: &RunResult, manifest: &Manifest, lines: &[Line]) -> bool {
    let effective = manifest.policy.effective.as_ref();
    let asked = effective.into_iter().flat_map(|own| &own.review.checks);
    let reported = result.checks.reports.iter().map(|report| &report.command);
    if !asked.map(|line| &line.text).eq(reported) {
        return false;
    }
    let told: Vec<&Event> = lines
        .iter()
        .map(|line| &line.event)
        .filter(|event| matches!(event, Event::CheckEnded { .. }))
        .collect();
    let of_check = |number: usize| {
        let number = number as u64;
        let own = move |event: &&&Event| matches!(event, Event::CheckEnded { check, .. } if *check == number);
        told.iter().filter(own).map(|event| (**event).clone())
    };
    let reports = result.checks.reports.iter().enumerate();
    let listed: usize = result
        .checks
        .reports
        .iter()
        .map(|own| own.executions.len())
        .sum();
    listed == told.len()
        && reports.clone().all(|(number, report)| {
            let executions = report.executions.iter();
            let events = executions.map(|own| crate::checks::ended(number, own.tree, &own.ran));
            events.eq(of_check(number))
        })
        && reports.clone().all(|(_, report)| {
            let examined = match report.exam {
                Some(_) => Examined::BothWays,
                None => Examined::AsPatched,
            };
            let judged = CheckReport::judge(&report.command, report.executions.clone(), examined);
            (judged.verdict, judged.exam) == (report.verdict, report.exam)
        })
}

/// The events that a journal of this run has once each.
fn events(result: &RunResult, manifest: &Manifest) -> [Event; 6] {
    let (cpu_ms, peak_bytes) = measured(result.cpu_ms, result.peak_bytes);
    [
        Event::Task {
            run: result.run.to_string(),
            argv: result.argv.clone(),
            folder: result.folder.clone(),
            version: manifest.version.clone(),
        },
        Event::Enforced {
            backend: manifest.backend.name.clone(),
            identity: manifest.backend.identity.clone(),
            limits: result.limits.clone(),
            files: manifest.backend.files.clone(),
            image: manifest.environment.image.clone(),
        },
        Event::Command {
            argv: result.argv.clone(),
        },
        Event::CommandEnded {
            outcome: result.outcome,
            code: result.exit_code,
            signal: result.signal,
            duration_ms: result.duration_ms,
            leftovers: result.leftovers.len() as u64,
            cpu_ms,
            peak_bytes,
        },
        Event::Seal {
            changed: result.changes.len() as u64,
            omitted: result.omitted.len() as u64,
            patch_sha256: result.patch_sha256.clone(),
        },
        Event::End {
            status: result.status,
        },
    ]
}

/// An event as earlier versions wrote it, which did not tell what a command used.
fn unmeasured(event: &Event) -> Event {
    let mut event = event.clone();
    if let Event::CommandEnded {
        cpu_ms, peak_bytes, ..
    } = &mut event
    {
        (*cpu_ms, *peak_bytes) = (None, None);
    }
    event
}

fn word(event: &Event) -> &'static str {
    match event {
        Event::Task { .. } => "task",
        Event::Enforced { .. } => "backend",
        Event::Command { .. } => "command",
        Event::CommandEnded { .. } => "outcome",
        Event::Seal { .. } => "change set",
        _ => "status",
    }
}

fn distinct(result: &RunResult) -> Vec<ByteText> {
    let mut paths: Vec<ByteText> = result.changes.iter().map(|c| c.path.clone()).collect();
    paths.dedup();
    paths
}

/// Holds a statement against everything else. Without a result its own words on it are taken.
pub(super) fn statement(
    statement: &Statement,
    manifest: &Manifest,
    manifest_text: &[u8],
    result: Option<&RunResult>,
) -> Result<(), String> {
    let own = &statement.predicate;
    let argv = result.map_or(&own.task.argv, |result| &result.argv);
    let ending = result.map_or_else(|| own.outcome.clone(), crate::bundle::ending);
    let expected = Statement::about(
        manifest,
        sha256_hex(manifest_text),
        argv,
        ending,
        own.signer.clone(),
    );
    if *statement == expected {
        return Ok(());
    }
    let told = &expected.predicate;
    let what = [
        ("manifest", own.manifest_sha256 == told.manifest_sha256),
        ("subjects", statement.subject == expected.subject),
        ("command", own.task == told.task),
        ("outcome", own.outcome == told.outcome),
    ]
    .into_iter()
    .find_map(|(what, same)| (!same).then_some(what));
    Err(format!(
        "what is signed is about another {}",
        what.unwrap_or("bundle")
    ))
}
