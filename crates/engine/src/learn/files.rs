//! What was written and what crossed back, as areas and patterns.

use std::collections::BTreeSet;

use ringfence_model::ByteText;
use ringfence_model::observed::Wrote;
use ringfence_model::policy::area::Area;
use ringfence_model::policy::glob::Globs;
use ringfence_model::text::misleads;

use super::Seen;

/// BOUND: areas and patterns that a person would read.
const MAX_LINES: usize = 12;

/// What is proposed of files.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// `None`: the whole workspace.
    pub write: Option<Vec<String>>,
    pub export: Option<Vec<String>>,
    /// Why a list is not there.
    pub notes: Vec<&'static str>,
}

/// Whether a path belongs to the repository's own files, which never cross back.
pub(super) fn is_git(path: &str) -> bool {
    path == ".git" || path.starts_with(".git/") || path.contains("/.git/")
}

pub(super) fn lines(runs: &[Seen]) -> Lines {
    let mut lines = Lines::default();
    match areas(runs) {
        Areas::Nothing => lines.notes.push("nothing was written"),
        Areas::All(why) => lines.notes.push(why),
        Areas::These(areas) => lines.write = Some(areas),
    }
    let changed: BTreeSet<&ByteText> = runs
        .iter()
        .filter_map(|run| run.used.as_ref())
        .flat_map(|used| &used.changed_files)
        .collect();
    if !changed.is_empty() {
        lines.export = Some(patterns(&changed));
    } else if runs.iter().all(|run| run.used.is_some()) {
        lines.notes.push("no change crossed back");
    }
    lines
}

enum Areas {
    Nothing,
    All(&'static str),
    These(Vec<String>),
}

fn areas(runs: &[Seen]) -> Areas {
    let mut areas: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut any = false;
    for write in runs.iter().flat_map(|run| &run.writes) {
        let others = match &write.what {
            Wrote::Renamed { from } => Some(from),
            Wrote::Exchanged { with } => Some(with),
            _ => None,
        };
        for path in std::iter::once(&write.path).chain(others) {
            let Some(text) = plain(path) else {
                // Its name stands for no area, so the one above it is taken.
                match parent(path) {
                    Some(above) => areas.insert(above),
                    None => return Areas::All("a name at the top can be written in no policy"),
                };
                any = true;
                continue;
            };
            if is_git(&text) {
                continue;
            }
            any = true;
            let mut names: Vec<String> = text.split('/').map(str::to_owned).collect();
            let name = names.pop().unwrap_or_default();
            if !names.is_empty() {
                areas.insert(names);
                continue;
            }
            // A file at the top that was there can be an area of its own; an entry there cannot.
            match write.what {
                Wrote::Opened | Wrote::Truncated | Wrote::Mode => areas.insert(vec![name]),
                _ => {
                    return Areas::All(
                        "`write` is left out: entries at the top of the folder were made or removed",
                    );
                }
            };
        }
    }
    if !any {
        return Areas::Nothing;
    }
    // Deep ones are drawn together until few are left.
    for depth in [4, 3, 2, 1] {
        let mut cut: BTreeSet<Vec<String>> = areas
            .iter()
            .map(|names| names.iter().take(depth).cloned().collect())
            .collect();
        let all = cut.clone();
        cut.retain(|own| {
            !all.iter()
                .any(|other| other != own && own.starts_with(other))
        });
        if cut.len() <= MAX_LINES || depth == 1 {
            areas = cut;
            break;
        }
    }
    if areas.len() > MAX_LINES {
        return Areas::All("`write` is left out: too many places were written");
    }
    Areas::These(areas.into_iter().map(|names| area(runs, &names)).collect())
}

/// A directory is written with what is below it.
fn area(runs: &[Seen], names: &[String]) -> String {
    let path = names.join("/");
    let below = format!("{path}/");
    let mut writes = runs.iter().flat_map(|run| &run.writes);
    if writes.any(|write| write.path.as_bytes().starts_with(below.as_bytes())) {
        format!("{path}/**")
    } else {
        path
    }
}

/// A path that can stand in a policy.
fn plain(path: &ByteText) -> Option<String> {
    let text = std::str::from_utf8(path.as_bytes()).ok()?;
    let is_plain = !text.chars().any(misleads) && Area::parse(text).is_ok();
    is_plain.then(|| text.to_owned())
}

/// The nearest directory that can stand in a policy.
fn parent(path: &ByteText) -> Option<Vec<String>> {
    let mut bytes = path.as_bytes();
    while let Some(at) = bytes.iter().rposition(|byte| *byte == b'/') {
        bytes = &bytes[..at];
        if let Some(text) = plain(&ByteText::from(bytes)) {
            return Some(text.split('/').map(str::to_owned).collect());
        }
    }
    None
}

/// `src/**/*.rs` for what has an ending, the name itself for what is alone.
fn patterns(changed: &BTreeSet<&ByteText>) -> Vec<String> {
    let pattern = |path: &ByteText, narrow: bool| -> String {
        let Some(text) = plain(path) else {
            return match parent(path) {
                Some(names) => format!("{}/**", names.join("/")),
                None => "**".to_owned(),
            };
        };
        let Some((top, rest)) = text.split_once('/') else {
            return text;
        };
        let name = rest.rsplit('/').next().unwrap_or(rest);
        match name.rsplit_once('.') {
            Some((stem, end)) if narrow && !stem.is_empty() => format!("{top}/**/*.{end}"),
            _ if narrow => text,
            _ => format!("{top}/**"),
        }
    };
    for narrow in [true, false] {
        let patterns: BTreeSet<String> = changed.iter().map(|path| pattern(path, narrow)).collect();
        let patterns: Vec<String> = patterns.into_iter().collect();
        if patterns.len() <= MAX_LINES && Globs::parse(&patterns).is_ok() {
            return patterns;
        }
    }
    vec!["**".to_owned()]
}
