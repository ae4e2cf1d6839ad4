//! Changed files that were written by what a package manager ran on its own account: scripts of
//! packages, set-up programs, build scripts.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;
use ringfence_model::changes::ChangeKind;
use ringfence_model::flag::{Evidence as Rests, FlagKind, Severity};

use super::{Facts, Found, LINEAGE};
use crate::evidence::{Evidence, Ran};

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    let mut changed: BTreeSet<&[u8]> = BTreeSet::new();
    for change in facts.changes {
        changed.insert(change.path.as_bytes());
        if let ChangeKind::Renamed { from } = &change.kind {
            changed.insert(from.as_bytes());
        }
    }
    let mut hooks: BTreeMap<u64, Option<&'static str>> = BTreeMap::new();
    let mut told: BTreeSet<Vec<u8>> = BTreeSet::new();
    for (_, write) in &facts.evidence.writes {
        let Some(number) = write.exec else { continue };
        let path = facts.with_prefix(write.path.as_bytes());
        if !changed.contains(path.as_slice()) {
            continue;
        }
        let hook = *hooks
            .entry(number)
            .or_insert_with(|| hook(facts.evidence, number));
        if let Some(hook) = hook
            && told.insert(path.clone())
        {
            found.add(
                FlagKind::InstallHookWrote,
                Severity::Warning,
                "a changed file was written by a script that a package manager or a build ran",
                Some(Rests::Path {
                    path: ByteText(path),
                    detail: Some(format!("{hook}, exec {number}")),
                }),
            );
        }
    }
}

/// The hook that an exec is, or is part of.
fn hook(evidence: &Evidence, number: u64) -> Option<&'static str> {
    let lineage: Vec<&Ran> = evidence.lineage(number).take(LINEAGE).collect();
    for (depth, ran) in lineage.iter().enumerate() {
        let words = words(ran);
        let names: Vec<&str> = words.iter().take(4).map(|word| last(word)).collect();
        let named = |wanted: &[&str]| names.iter().any(|name| wanted.contains(name));
        let asks = |verbs: &[&str]| words.iter().skip(1).any(|w| verbs.contains(&w.as_str()));
        if names.first().is_some_and(|name| {
            *name == "build-script-build" || name.starts_with("build_script_build")
        }) {
            return Some("build script of a crate");
        }
        let above = |managers: &[&str]| {
            lineage[depth + 1..].iter().any(|ran| {
                let words = self::words(ran);
                words
                    .iter()
                    .take(4)
                    .any(|word| managers.contains(&last(word)))
            })
        };
        if named(&["setup.py", "_in_process.py", "get_requires_for_build_wheel"])
            && above(&[
                "pip",
                "pip3",
                "uv",
                "poetry",
                "pdm",
                "pipenv",
                "easy_install",
                "build",
            ])
        {
            return Some("set-up program of a Python package");
        }
        if named(&["extconf.rb"]) {
            return Some("extension of a gem");
        }
        // The manager itself writes its lock file; what it starts is somebody else's.
        if depth > 0 {
            if named(&[
                "npm",
                "npm-cli.js",
                "pnpm",
                "pnpm.cjs",
                "yarn",
                "yarn.js",
                "yarn.cjs",
                "bun",
            ]) && asks(&[
                "install", "i", "ci", "add", "update", "upgrade", "rebuild", "up",
            ]) {
                return Some("script of an npm package");
            }
            if named(&["composer", "composer.phar"]) && asks(&["install", "update", "require"]) {
                return Some("script of composer");
            }
        }
    }
    None
}

fn words(ran: &Ran) -> Vec<String> {
    let argv = ran.exec.argv.iter().take(8);
    argv.map(|word| String::from_utf8_lossy(word.as_bytes()).into_owned())
        .collect()
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::programs::tests::known;
    use super::super::tests::{Run, World, evidence_with};

    fn told(runs: &[Run], path: &str) -> bool {
        let number = runs.len() as u64;
        let world = World {
            evidence: evidence_with(runs, &[(number, path)]),
            known: known(&["/usr/bin/sh"]),
            ..World::of(&[("src/a.js", "modified")])
        };
        let kinds = world.kinds(&[]);
        kinds.contains(&"warning install_hook_wrote".into())
    }

    #[test]
    fn hooks_are_known_by_who_started_them() {
        let npm = Run::new("node /usr/bin/npm install");
        let chain = |first: Run, second: Run| {
            vec![Run::new("sh agent.sh"), first.below(1), second.below(2)]
        };
        for runs in [
            chain(npm.clone(), Run::new("sh -c node postinstall.js")),
            chain(Run::new("pnpm add x"), Run::new("sh -c x")),
            chain(
                Run::new("python3 -m pip install ."),
                Run::new("python3 setup.py develop"),
            ),
            chain(
                Run::new("cargo build"),
                Run::new("/workspace/target/debug/build/x-1/build-script-build"),
            ),
            chain(Run::new("gem install x"), Run::new("ruby -I x extconf.rb")),
            chain(Run::new("composer install"), Run::new("sh -c x")),
        ] {
            assert!(told(&runs, "src/a.js"), "{runs:?}");
            assert!(!told(&runs, "src/other.js"), "not in the patch: {runs:?}");
        }
        for runs in [
            vec![Run::new("sh agent.sh"), npm.below(1)],
            chain(Run::new("npm run build"), Run::new("sh -c x")),
            chain(Run::new("npm test"), Run::new("sh -c x")),
            chain(Run::new("cargo build"), Run::new("rustc x")),
            chain(Run::new("sh x"), Run::new("python3 setup.py develop")),
            chain(Run::new("sh x"), Run::new("sed -i s/a/b/ src/a.js")),
        ] {
            assert!(!told(&runs, "src/a.js"), "{runs:?}");
        }
    }
}
