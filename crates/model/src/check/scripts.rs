//! Scripts of a folder that a check runs: part of the exam as tests are.
//!
//! A line of shell names its scripts in many ways. HOSTILE: too much is better than too little here. A
//! word too many protects a file of that name, wherever it is.

use std::collections::BTreeSet;

/// Where the folder is for a check.
pub const INSIDE: &str = "/workspace";

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "busybox"];
/// The shell's own words that read a script; as a word of another command they mean nothing.
const READ: [&str; 2] = [".", "source"];
/// Programs that run another, and the shell's own words before a command.
const RUN_ANOTHER: [&str; 25] = [
    "env", "timeout", "nice", "ionice", "time", "exec", "command", "nohup", "setsid", "stdbuf",
    "xargs", "sudo", "chrt", "taskset", "unbuffer", "builtin", "eval", "if", "then", "elif",
    "else", "do", "while", "until", "!",
];
/// What these are given may well be what is to be looked at: `python3 main.py`. It is not where it stands
/// among what looks at others.
const INTERPRETERS: [&str; 9] = [
    "python", "python3", "node", "ruby", "perl", "php", "deno", "bun", "Rscript",
];
const EXAMINERS: [&str; 10] = [
    "ci", ".ci", "check", "checks", "hack", "lint", "script", "scripts", "tool", "tools",
];
const BETWEEN: [char; 9] = [';', '&', '|', '(', ')', '`', '{', '}', '\n'];
/// BOUND: lines of recipes that are looked at.
const LINES: usize = 5000;

/// Files that say what a word of a check stands for: programs, and where they look.
const RECIPES: [(&[&str], &[&str]); 3] = [
    (&["make", "gmake"], &["GNUmakefile", "makefile", "Makefile"]),
    (&["npm", "npx", "yarn", "pnpm", "bun"], &["package.json"]),
    (&["just"], &["justfile", "Justfile", ".justfile"]),
];

/// Names and patterns of the scripts that lines of shell run: `ci.sh`, `tools/test`, `ci/*`. Each is the end
/// of a path, because a check may go elsewhere first. `read` gives the text of a file of the folder, for
/// what `make` or `npm` is told to run.
pub fn scripts<'c>(
    commands: impl IntoIterator<Item = &'c str>,
    read: impl Fn(&str) -> Option<String>,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut lines: Vec<String> = commands.into_iter().map(str::to_owned).collect();
    let mut looked = BTreeSet::new();
    let mut at = 0;
    while at < lines.len().min(LINES) {
        found.extend(of_line(&lines[at]));
        for file in recipes(&lines[at]) {
            if looked.insert(file.clone())
                && let Some(text) = read(&file)
            {
                lines.extend(recipe_lines(&file, &text));
            }
        }
        at += 1;
    }
    found
}

/// Files with recipes that a line of shell goes by.
fn recipes(command: &str) -> Vec<String> {
    let words: Vec<String> = words(command).collect();
    let mut found = Vec::new();
    for (programs, files) in RECIPES {
        if !words.iter().any(|word| programs.contains(&last(word))) {
            continue;
        }
        found.extend(files.iter().map(|file| (*file).to_owned()));
        for pair in words.windows(2) {
            match pair[0].as_str() {
                "-C" | "--directory" | "--prefix" | "--cwd" | "cd" => {
                    let place = pair[1].trim_end_matches('/');
                    found.extend(files.iter().map(|file| format!("{place}/{file}")));
                }
                "-f" | "--file" | "--makefile" | "--justfile" => found.push(pair[1].clone()),
                _ => {}
            }
        }
    }
    found
}

/// What a file of recipes has run.
fn recipe_lines(file: &str, text: &str) -> Vec<String> {
    if file.ends_with(".json") {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else {
            return Vec::new();
        };
        let scripts = value["scripts"].as_object().into_iter().flatten();
        return scripts
            .filter_map(|(_, line)| line.as_str().map(str::to_owned))
            .collect();
    }
    let indented = text.lines().filter(|line| line.starts_with(['\t', ' ']));
    indented
        .map(|line| {
            line.trim_start()
                .trim_start_matches(['@', '-', '+'])
                .to_owned()
        })
        .collect()
}

fn words(command: &str) -> impl Iterator<Item = String> {
    command
        .split(BETWEEN)
        .flat_map(str::split_whitespace)
        .map(plain)
}

/// A word as the shell has it after its quotes are gone.
fn plain(word: &str) -> String {
    word.replace(['"', '\'', '\\'], "")
}

fn last(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// `${NAME}` as `$NAME`: other braces group commands.
fn bare_variables(command: &str) -> String {
    let mut parts = command.split("${");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        all.push('$');
        all.push_str(&part.replacen('}', "", 1));
    }
    all
}

/// What one line runs.
fn of_line(command: &str) -> BTreeSet<String> {
    let command = &bare_variables(command);
    let mut found = BTreeSet::new();
    let mut unknown = false;
    let mut before: Vec<String> = Vec::new();
    for part in command.split(BETWEEN) {
        let words: Vec<String> = part.split_whitespace().map(plain).collect();
        let seen = Part::read(&words);
        for word in &seen.scripts {
            match name(word) {
                Some(name) => {
                    found.insert(name);
                }
                None => unknown |= word.contains('$'),
            }
        }
        // `cat ci/check | sh`.
        if seen.is_bare_shell {
            found.extend(before.iter().skip(1).filter_map(|word| name(word)));
        }
        before = words;
    }
    if unknown {
        // `for one in ci/*; do sh $one; done`: it is one of the words.
        let words = words(command);
        let words = words.map(|word| match word.split_once('=') {
            Some((_, value)) => value.to_owned(),
            None => word,
        });
        found.extend(
            words
                .filter(|word| word.contains(['/', '*', '?', '[']))
                .filter_map(|word| name(&word)),
        );
    }
    found
}

/// What was seen of one command.
#[derive(Default)]
struct Part<'w> {
    scripts: Vec<&'w str>,
    /// A shell that reads what it runs.
    is_bare_shell: bool,
}

impl<'w> Part<'w> {
    fn read(words: &'w [String]) -> Self {
        let mut part = Self::default();
        let (mut shell, mut interpreter, mut make) = (false, false, false);
        let mut leads = true;
        let mut given = false;
        let mut redirected = false;
        for (at, raw) in words.iter().enumerate() {
            let word = raw.trim_matches(['<', '>']);
            let is_shell = SHELLS.contains(&last(word)) || (leads && READ.contains(&word));
            let ends = [".sh", ".bash", ".zsh"]
                .iter()
                .any(|end| word.ends_with(end));
            let examines = interpreter && parents(word).any(|parent| EXAMINERS.contains(&parent));
            let file =
                make && at > 0 && ["-f", "--file", "--makefile"].contains(&words[at - 1].as_str());
            // What a shell is given is a script, an option's word, or a line of shell itself.
            if shell
                || ends
                || file
                || examines
                || (leads && word.contains('/') && !word.contains('='))
            {
                part.scripts.push(word);
            }
            if make && let Some(file) = word.strip_prefix("-f").or(word.strip_prefix("--file=")) {
                part.scripts.push(file);
            }
            if shell && !word.starts_with('-') {
                given = true;
            }
            let begins = leads;
            // A redirection may stand before the command; its file may be a word of its own, and so may
            // what an option is given.
            let after_option = at > 0 && words[at - 1].starts_with('-');
            leads &= leads_on(word)
                || raw.starts_with(['<', '>'])
                || redirected
                || (after_option && !is_shell);
            redirected = raw.ends_with(['<', '>']);
            if begins && !leads {
                interpreter |= INTERPRETERS.contains(&last(word));
                make |= RECIPES[0].0.contains(&last(word)) || RECIPES[2].0.contains(&last(word));
            }
            shell |= is_shell;
        }
        part.is_bare_shell = shell && !given;
        part
    }
}

fn parents(word: &str) -> impl Iterator<Item = &str> {
    let (above, _) = word.rsplit_once('/').unwrap_or_default();
    above.split('/')
}

/// Whether what follows a word is still the program that is run: variables, and programs that run
/// another, with their options.
fn leads_on(word: &str) -> bool {
    word.contains('=')
        || word.starts_with('-')
        || word.starts_with(|first: char| first.is_ascii_digit())
        || RUN_ANOTHER.contains(&word)
}

/// The end of a path that a word surely has; `None` where it is none of the folder's, or nothing of it is
/// known.
fn name(word: &str) -> Option<String> {
    let word = word.trim_matches(['<', '>']);
    let within = word
        .strip_prefix(INSIDE)
        .filter(|rest| rest.starts_with('/'));
    let word = match within {
        Some(rest) => rest,
        None if word.starts_with(['/', '-', '~']) => return None,
        None => word,
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in word.split('/') {
        match part {
            "" | "." => {}
            // Where that leads nobody knows; what follows is still the end of it.
            ".." => parts.clear(),
            part if part.contains('$') => parts.clear(),
            part => parts.push(part),
        }
    }
    let ends_unknown = word.rsplit('/').next().is_some_and(|end| end.contains('$'));
    (!parts.is_empty() && !ends_unknown).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str) -> Vec<String> {
        scripts([command], |_| None).into_iter().collect()
    }

    #[test]
    fn a_script_that_a_check_runs_is_part_of_the_exam() {
        for (command, expected) in [
            ("./ci.sh --all", vec!["ci.sh"]),
            (
                "sh -e run-tests && tools/lint src",
                vec!["run-tests", "tools/lint"],
            ),
            ("CI=1 bash scripts/test", vec!["scripts/test"]),
            ("cd a; . ./env", vec!["env"]),
            ("timeout 60 ./ci.sh", vec!["ci.sh"]),
            ("timeout -k 5s 1m tools/check", vec!["tools/check"]),
            ("env A=1 ./ci", vec!["ci"]),
            ("bash -o pipefail ci", vec!["ci", "pipefail"]),
            ("sh -c './ci && lint/all'", vec!["ci", "lint/all"]),
            ("cd sub && ./run.sh", vec!["run.sh"]),
            ("if ! tools/x; then tools/y; fi", vec!["tools/x", "tools/y"]),
            ("python3 src/main.py && ruff check src/a", vec![]),
            ("pytest -q tests", vec![]),
            ("python3 main.py", vec![]),
            ("/usr/bin/make test", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(of(command), expected, "{command}");
        }
    }

    #[test]
    fn however_it_is_spelt() {
        for (command, expected) in [
            ("sh ci//check", vec!["ci/check"]),
            ("sh ./ci/../ci/check", vec!["ci/check"]),
            ("sh \"ci\"/check", vec!["ci/check"]),
            ("sh c\\i/check", vec!["ci/check"]),
            ("D=ci; sh $D/check", vec!["check"]),
            ("sh ${D}/check", vec!["check"]),
            ("sh $PWD/ci/check", vec!["ci/check"]),
            ("sh /workspace/ci/check", vec!["ci/check"]),
            ("cd src && sh ../ci/check", vec!["ci/check"]),
            ("env -C ci ./check", vec!["check"]),
            ("env -C sub tools/x", vec!["tools/x"]),
            ("cat ci/check | sh", vec!["ci/check"]),
            ("cat ci/check | bash -e", vec!["ci/check"]),
            ("sh < ci/check", vec!["ci/check"]),
            ("for f in ci/*; do sh $f || exit 1; done", vec!["ci/*"]),
            ("S=ci/check; sh \"$S\"", vec!["ci/check"]),
            ("make -f ci/x.mk", vec!["ci/x.mk"]),
            ("make -fci/x.mk", vec!["ci/x.mk"]),
            ("make --file=ci/x.mk all", vec!["ci/x.mk"]),
            ("python3 tools/check.py src", vec!["tools/check.py"]),
            ("env -u A python3 src/main.py", vec![]),
            ("node src/index.js", vec![]),
            ("/bin/sh /usr/bin/x", vec![]),
        ] {
            assert_eq!(of(command), expected, "{command}");
        }
    }

    #[test]
    fn what_make_and_npm_are_told_to_run() {
        let read = |file: &str| match file {
            "Makefile" => {
                Some("include common.mk\ntest: a\n\t@./scripts/check.sh $(X)\n\t-npm test\n")
            }
            "sub/Makefile" => Some("test:\n\tsh below\n"),
            "package.json" => Some(r#"{"scripts": {"test": "jest && sh scripts/more", "x": 1}}"#),
            _ => None,
        };
        let read = |file: &str| read(file).map(str::to_owned);
        let all = |command| -> Vec<String> { scripts([command], read).into_iter().collect() };
        let both = ["scripts/check.sh", "scripts/more"];
        assert_eq!(all("make test"), both);
        assert_eq!(all("CI=1 /usr/bin/make -k test"), both);
        assert_eq!(all("npm test"), ["scripts/more"]);
        assert_eq!(all("yarn run test"), ["scripts/more"]);
        assert_eq!(all("make -C sub test"), ["below", both[0], both[1]]);
        assert!(all("cmake --build .").is_empty());
        let bad = scripts(["npm test"], |_| Some("{".to_owned()));
        assert!(bad.is_empty());
    }

    #[test]
    fn a_dot_reads_a_script_only_where_a_command_begins() {
        for (command, expected) in [
            (". ./env", vec!["env"]),
            ("cd a; . setup", vec!["setup"]),
            ("cd a && . setup && make", vec!["setup"]),
            ("true || . setup", vec!["setup"]),
            ("true | . setup", vec!["setup"]),
            ("(. setup)", vec!["setup"]),
            ("make\n. setup", vec!["setup"]),
            ("if true; then . a; else . b; fi", vec!["a", "b"]),
            ("for x in 1; do . setup; done", vec!["setup"]),
            ("until . ready; do :; done", vec!["ready"]),
            ("! source setup", vec!["setup"]),
            ("A=1 command . setup", vec!["setup"]),
            ("eval . setup", vec!["setup"]),
            (">log . setup", vec!["setup"]),
            ("> log 2>&1", vec![]),
            ("< in . setup", vec!["setup"]),
            ("'.' setup", vec!["setup"]),
            ("bash -c '. setup'", vec!["setup"]),
            // A pattern, a directory, a word.
            ("grep -c . out.txt", vec![]),
            ("timeout 5 grep -c . out.txt", vec![]),
            ("test \"$(grep -c . out.txt)\" = 3", vec![]),
            ("find . -name out.txt", vec![]),
            ("cat list | grep . - out.txt", vec![]),
            ("grep -r source notes.txt", vec![]),
            ("diff -r . other", vec![]),
            ("ls ./. out.txt", vec![]),
        ] {
            assert_eq!(of(command), expected, "{command}");
        }
    }
}
