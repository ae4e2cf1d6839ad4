//! What a Dockerfile says of its image. It is read and never built.

use std::collections::BTreeMap;

use super::{Files, Proposed, Said, add, is_plain_path, plain, split, text};

/// BOUND: instructions that are looked at; real files have dozens.
const MAX_INSTRUCTIONS: usize = 2000;
/// BOUND: how much of an instruction is shown.
const SHOWN: usize = 60;

/// Names of images that bring the programs of a language.
const LANGUAGES: &[(&str, &str)] = &[
    ("python3", "python"),
    ("uv", "uv"),
    ("node", "node"),
    ("bun", "bun"),
    ("deno", "deno"),
    ("cargo", "rust"),
    ("go", "golang"),
    ("ruby", "ruby"),
    ("php", "php"),
    ("mix", "elixir"),
    ("java", "maven"),
    ("java", "gradle"),
    ("java", "eclipse-temurin"),
    ("java", "openjdk"),
    ("dotnet", "sdk"),
    ("swift", "swift"),
    ("dart", "dart"),
    ("julia", "julia"),
];

/// Whether a file of this name is one.
pub(super) fn is_one(name: &str) -> bool {
    matches!(name, "Dockerfile" | "Containerfile") || name == "Dockerfile.dev"
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stage {
    line: usize,
    /// As it stands there with arguments put in; absent where one of them has no value.
    image: Option<String>,
    name: Option<String>,
    /// The stage that it goes on from.
    on: Option<usize>,
    /// What is done in it: line and beginning.
    done: Vec<(usize, String)>,
}

/// Takes over the image of the best Dockerfile where nothing else names one.
pub(super) fn take(own: &mut Proposed, files: &Files) {
    let at_top = ["Dockerfile.dev", "Dockerfile", "Containerfile"];
    let top = at_top.into_iter().find(|name| files.contains_key(*name));
    for path in files.keys() {
        let (folder, name) = split(path);
        if !is_one(name) || Some(path.as_str()) == top || folder == ".devcontainer" {
            continue;
        }
        let instead = "one environment has one image; name another yourself if it fits better";
        own.leave_out(path, "another Dockerfile", instead);
    }
    let Some(path) = top else { return };
    match own.image.clone() {
        None => read(own, files, path),
        Some(image) => {
            let instead = format!("{} names the image", image.why);
            own.leave_out(path, "the image of this file", &instead);
        }
    }
}

/// Takes over the image of one Dockerfile.
pub(super) fn read(own: &mut Proposed, files: &Files, path: &str) {
    let Some(content) = text(files, path) else {
        if !matches!(files.get(path), Some(super::Seen::Odd(_))) {
            own.leave_out(
                path,
                "it is not there, or no text",
                "nothing is taken from it",
            );
        }
        return;
    };
    let stages = stages(content);
    let Some(last) = stages.len().checked_sub(1) else {
        own.leave_out(path, "it has no `FROM`", "nothing is taken from it");
        return;
    };
    let chosen = best(&stages, own).unwrap_or(last);
    let name = stages[chosen].name.as_deref();
    let why = match (chosen == last, name.filter(|name| is_plain_path(name))) {
        (true, _) => "the last stage".to_owned(),
        (false, Some(name)) => format!("stage `{name}`, which has what the lock files need"),
        (false, None) => "the last stage that has what the lock files need".to_owned(),
    };
    let (root, line) = root_of(&stages, chosen);
    let place = format!("{path}:{line}");
    match root.image.as_deref().and_then(image_of) {
        None => own.leave_out(
            &place,
            "the name of its image has an argument without a value, or is no image",
            "write `image = …` yourself",
        ),
        Some("scratch") => own.leave_out(&place, "`FROM scratch`", "write `image = …` yourself"),
        Some(image) => {
            own.image = Some(Said {
                value: image.to_owned(),
                why: format!("{place}, {why}"),
            });
        }
    }
    let mut at = Some(chosen);
    let mut done: Vec<&(usize, String)> = Vec::new();
    while let Some(stage) = at.map(|at| &stages[at]) {
        done.extend(&stage.done);
        at = stage.on;
    }
    done.sort();
    for (line, instruction) in &done {
        let instead = "no image is built here: put it into `setup`, or build the image (below)";
        own.leave_out(&format!("{path}:{line}"), instruction, instead);
    }
    if !done.is_empty() && is_plain_path(path) {
        build(own, path, None, ".");
    }
}

/// The exact words with which somebody else builds the image.
pub(super) fn build(own: &mut Proposed, path: &str, target: Option<&str>, context: &str) {
    let target = target.map_or(String::new(), |target| format!(" --target {target}"));
    let why = "builds the image with all that is done in it; then name it: image = \"local/dev\"";
    let lines = [
        format!("docker build -t local/dev -f {path}{target} {context}"),
        "docker save -o dev-image.tar local/dev".to_owned(),
        "ringfence image import dev-image.tar".to_owned(),
    ];
    for line in lines {
        add(&mut own.commands, &line, why);
    }
}

/// The last stage whose image has the programs that are needed.
fn best(stages: &[Stage], own: &Proposed) -> Option<usize> {
    let fits = |at: &usize| {
        let image = root_of(stages, *at).0.image.as_deref().unwrap_or_default();
        let base = image.split(['@', ':']).next().unwrap_or_default();
        let name = base.rsplit('/').next().unwrap_or_default();
        own.needs.iter().any(|need| {
            let mut known = LANGUAGES.iter();
            known.any(|(program, image)| *program == need.program && name.starts_with(image))
        })
    };
    (0..stages.len()).rev().find(fits)
}

/// The stage that names the image of a stage, and its line.
fn root_of(stages: &[Stage], at: usize) -> (&Stage, usize) {
    let mut stage = &stages[at];
    while let Some(on) = stage.on {
        stage = &stages[on];
    }
    (stage, stage.line)
}

/// A reference to an image, or nothing: what a registry could not have is not passed on.
pub fn image_of(text: &str) -> Option<&str> {
    let text = plain(text)?;
    let first = text.as_bytes().first()?.is_ascii_alphanumeric();
    let known = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    (first && text.len() <= 512 && text.chars().all(known) && !text.contains("..")).then_some(text)
}

fn stages(content: &str) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    let mut arguments: BTreeMap<String, String> = BTreeMap::new();
    for (line, instruction) in instructions(content) {
        let (word, rest) = instruction
            .split_once(char::is_whitespace)
            .unwrap_or((&instruction, ""));
        let rest = rest.trim();
        match (word.to_ascii_uppercase().as_str(), stages.last_mut()) {
            // Only those before the first stage are known in `FROM`.
            ("ARG", None) => {
                for argument in rest.split_whitespace() {
                    if let Some((name, value)) = argument.split_once('=') {
                        let value = value.trim_matches(['"', '\'']);
                        arguments.insert(name.to_owned(), value.to_owned());
                    }
                }
            }
            ("FROM", _) => {
                let mut words = rest
                    .split_whitespace()
                    .filter(|word| !word.starts_with("--"));
                let image = words.next().and_then(|image| filled(image, &arguments));
                let is_as = words
                    .next()
                    .is_some_and(|word| word.eq_ignore_ascii_case("as"));
                let name = words.next().filter(|_| is_as).map(str::to_ascii_lowercase);
                let on = stages.iter().position(|stage| {
                    stage.name.is_some() && stage.name == image.as_ref().map(|i| i.to_lowercase())
                });
                stages.push(Stage {
                    line,
                    image,
                    name,
                    on,
                    done: Vec::new(),
                });
            }
            ("RUN" | "ENV" | "ADD" | "SHELL" | "ONBUILD", Some(stage)) => {
                let mut shown: String = instruction.chars().take(SHOWN).collect();
                if shown.len() < instruction.len() {
                    shown.push('…');
                }
                stage.done.push((line, shown));
            }
            _ => {}
        }
    }
    stages
}

/// Instructions with their lines: continued ones in one, without comments and heredocs.
fn instructions(content: &str) -> Vec<(usize, String)> {
    let escape = match content.lines().next().map(|line| line.replace(' ', "")) {
        Some(line) if line.eq_ignore_ascii_case("#escape=`") => '`',
        _ => '\\',
    };
    let mut found = Vec::new();
    let mut lines = content.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if found.len() == MAX_INSTRUCTIONS {
            break;
        }
        let mut whole = line.to_owned();
        while let Some(rest) = whole.strip_suffix(escape) {
            whole.truncate(rest.trim_end().len());
            match lines.next() {
                None => break,
                Some((_, next)) if next.trim_start().starts_with('#') || next.trim().is_empty() => {
                    whole.push(' ');
                    whole.push(escape);
                }
                Some((_, next)) => {
                    whole.push(' ');
                    whole.push_str(next.trim());
                }
            }
        }
        for end in heredocs(&whole) {
            for (_, line) in lines.by_ref() {
                if line.trim_start_matches('\t') == end {
                    break;
                }
            }
        }
        found.push((at + 1, whole));
    }
    found
}

/// The words that end the heredocs of an instruction.
fn heredocs(instruction: &str) -> Vec<String> {
    let word = instruction.split_whitespace().next().unwrap_or_default();
    if !["RUN", "COPY", "ADD"].contains(&word.to_ascii_uppercase().as_str()) {
        return Vec::new();
    }
    let mut ends = Vec::new();
    for part in instruction.split("<<").skip(1) {
        let part = part
            .strip_prefix('-')
            .unwrap_or(part)
            .trim_start_matches(['"', '\'']);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end: String = part.chars().take_while(|c| is_word(*c)).collect();
        if !end.is_empty() && !end.starts_with(|c: char| c.is_ascii_digit()) {
            ends.push(end);
        }
    }
    ends
}

/// A text with its arguments put in; `None` where one has no value.
fn filled(text: &str, arguments: &BTreeMap<String, String>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (name, default, left) = match after.strip_prefix('{') {
            Some(inner) => {
                let (inner, left) = inner.split_once('}')?;
                match inner.split_once(":-") {
                    Some((name, default)) => (name, Some(default), left),
                    None => (inner, None, left),
                }
            }
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
                (&after[..end], None, &after[end..])
            }
        };
        let value = arguments.get(name).map(String::as_str);
        out.push_str(value.filter(|value| !value.is_empty()).or(default)?);
        // BOUND: no name of an image is longer.
        if out.len() > super::MAX_TEXT {
            return None;
        }
        rest = left;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(content: &str) -> Vec<Option<String>> {
        let stages = stages(content);
        (0..stages.len())
            .map(|at| root_of(&stages, at).0.image.clone())
            .collect()
    }

    #[test]
    fn stages_have_the_images_that_they_stand_on() {
        for (content, expected) in [
            ("FROM a:1", &[Some("a:1")][..]),
            (
                "# syntax=x\n\nfrom  --platform=linux/amd64 a AS Build\nFROM build",
                &[Some("a"), Some("a")],
            ),
            (
                "ARG V=3.13\nFROM python:${V}-slim",
                &[Some("python:3.13-slim")],
            ),
            ("ARG V\nFROM python:$V", &[None]),
            ("FROM python:${V:-3}", &[Some("python:3")]),
            ("FROM a\nARG V=1\nFROM b:$V", &[Some("a"), None]),
            (
                "FROM a\nRUN <<EOF\nFROM evil\nEOF\nFROM b",
                &[Some("a"), Some("b")],
            ),
            (
                "FROM a\nRUN x \\\n# c\n  FROM evil\nFROM b",
                &[Some("a"), Some("b")],
            ),
            (
                "# escape=`\nFROM a\nRUN x `\nFROM evil\nFROM c",
                &[Some("a"), Some("c")],
            ),
            ("FROM self AS self", &[Some("self")]),
            ("RUN only", &[]),
            ("FROM", &[None]),
            ("FROM ${", &[None]),
        ] {
            let expected: Vec<Option<String>> = expected
                .iter()
                .map(|image| image.map(str::to_owned))
                .collect();
            assert_eq!(images(content), expected, "{content}");
        }
    }

    #[test]
    fn only_what_a_registry_can_have_is_an_image() {
        for (text, good) in [
            ("python:3.13-slim", true),
            ("registry.example:5000/a/b@sha256:00", true),
            ("-v", false),
            ("a b", false),
            ("a\u{1b}[2J", false),
            ("../../etc", false),
            ("", false),
            ("a\"b", false),
        ] {
            assert_eq!(image_of(text).is_some(), good, "{text:?}");
        }
    }

    #[test]
    fn a_long_line_of_continuations_ends() {
        let content = "FROM a\nRUN x \\\n".to_owned() + &"\\\n".repeat(20_000);
        assert_eq!(images(&content), [Some("a".to_owned())]);
        let bomb = "ARG A=xxxxxxxxxxxxxxxx\nFROM ".to_owned() + &"$A".repeat(100_000);
        assert_eq!(images(&bomb), [None]);
    }
}
