//! Which crates there are, and which may use which.

use std::collections::BTreeMap;

use super::{Finding, Tree};

/// Every crate of the house with what it may use besides `model`. `None` means all of them.
const HOUSE: &[(&str, Option<&[&str]>)] = &[
    ("model", Some(&[])),
    ("jail", Some(&[])),
    ("guest", Some(&["jail"])),
    ("gate", Some(&[])),
    ("engine", Some(&["jail"])),
    ("server", Some(&["engine"])),
    ("cli", None),
];

/// A crate beyond the seven needs a decision page that names it as `crates/NAME`.
pub fn crates_are_known(tree: &Tree) -> Vec<Finding> {
    manifests(tree)
        .filter(|(name, _, _)| !HOUSE.iter().any(|(known, _)| known == name))
        .filter(|(name, _, _)| {
            let named = format!("`crates/{name}`");
            !tree
                .with_extension("md")
                .any(|(path, text)| path.starts_with("docs/decisions/") && text.contains(&named))
        })
        .map(|(name, path, _)| {
            Finding::new(
                path,
                1,
                format!("crate `{name}` is not one of the house; an eighth needs a page in docs/decisions that names `crates/{name}`"),
            )
        })
        .collect()
}

/// Everything may use `model`; besides that only the edges of the house.
pub fn edges_are_allowed(tree: &Tree) -> Vec<Finding> {
    let directory_of: BTreeMap<String, &str> = manifests(tree)
        .map(|(name, _, text)| (package_name(text).unwrap_or(name).to_owned(), name))
        .collect();
    let mut findings = Vec::new();
    for (name, path, text) in manifests(tree) {
        let allowed = HOUSE.iter().find(|(known, _)| *known == name);
        for (line, dependency) in dependencies(text) {
            let Some(used) = directory_of.get(dependency) else {
                continue;
            };
            let fine = match allowed {
                Some((_, None)) => true,
                Some((_, Some(uses))) => uses.contains(used) || *used == "model",
                None => *used == "model",
            };
            if !fine || *used == name {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{name}` must not use `{used}`"),
                ));
            }
        }
    }
    findings
}

/// Directory name, manifest path and manifest text of each crate.
fn manifests(tree: &Tree) -> impl Iterator<Item = (&str, &str, &str)> {
    tree.texts().filter_map(|(path, text)| {
        let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        (!name.contains('/')).then_some((name, path, text))
    })
}

fn package_name(manifest: &str) -> Option<&str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[package]")
        .skip(1)
        .take_while(|line| !line.trim_start().starts_with('['))
        .find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "name").then(|| value.trim().trim_matches('"'))
        })
}

/// The packages that a manifest depends on, whatever the table and the spelling, with their lines.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_table = false;
    for (index, raw) in manifest.lines().enumerate() {
        let line = raw.split('#').next().unwrap_or_default().trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            in_table = header.ends_with("dependencies");
            // `[dependencies.name]` and `[target.'cfg(…)'.dependencies.name]`.
            if let Some((_, name)) = header.rsplit_once("dependencies.") {
                found.push((index + 1, name.trim_matches('"')));
            }
            continue;
        }
        // A renamed dependency says the real name in `package`.
        if let Some((_, rest)) = line.split_once("package = \"") {
            let name = rest.split('"').next().unwrap_or_default();
            found.push((index + 1, name));
        } else if in_table && let Some((key, _)) = line.split_once(['=', '.']) {
            found.push((index + 1, key.trim().trim_matches('"')));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    fn house(name: &str, dependencies: &str) -> Vec<Finding> {
        let path = format!("crates/{name}/Cargo.toml");
        let own = format!("[package]\nname = \"ringfence-{name}\"\n\n{dependencies}");
        let mut tree = Tree::default();
        for (other, _) in HOUSE {
            tree.insert(
                &format!("crates/{other}/Cargo.toml"),
                Some(format!("[package]\nname = \"ringfence-{other}\"\n")),
            );
        }
        tree.insert(&path, Some(own));
        edges_are_allowed(&tree)
    }

    #[test]
    fn edges() {
        for (from, dependencies, fine) in [
            (
                "gate",
                "[dependencies]\nringfence-model.workspace = true",
                true,
            ),
            (
                "guest",
                "[dependencies]\nringfence-jail = { path = \"../jail\" }",
                true,
            ),
            (
                "guest",
                "[dependencies]\nringfence-engine.workspace = true",
                false,
            ),
            (
                "model",
                "[dependencies]\nringfence-jail.workspace = true",
                false,
            ),
            (
                "engine",
                "[dependencies.ringfence-guest]\npath = \"x\"",
                false,
            ),
            (
                "engine",
                "[build-dependencies]\nringfence-guest.workspace = true",
                false,
            ),
            (
                "engine",
                "[target.'cfg(unix)'.dependencies]\nringfence-gate = \"1\"",
                false,
            ),
            (
                "engine",
                "[dev-dependencies]\nquiet = { package = \"ringfence-cli\" }",
                false,
            ),
            (
                "server",
                "[dependencies]\nringfence-jail.workspace = true",
                false,
            ),
            (
                "server",
                "[dependencies]\nringfence-engine.workspace = true",
                true,
            ),
            (
                "cli",
                "[dependencies]\nringfence-gate.workspace = true",
                true,
            ),
            (
                "gate",
                "[dependencies]\nserde = \"1\" # ringfence-engine",
                true,
            ),
            ("gate", "[features]\nringfence-engine = []", true),
        ] {
            assert_eq!(
                house(from, dependencies).is_empty(),
                fine,
                "{from}: {dependencies}"
            );
        }
    }

    #[test]
    fn an_edge_is_reported_at_its_line() {
        let found = house(
            "model",
            "[dependencies]\nserde = \"1\"\nringfence-cli = \"1\"",
        );
        assert_eq!(places(&found), ["crates/model/Cargo.toml:6"]);
    }

    #[test]
    fn an_eighth_crate_needs_a_page() {
        let manifest = ("crates/extra/Cargo.toml", "[package]\nname = \"x\"\n");
        assert_eq!(crates_are_known(&Tree::of(&[manifest])).len(), 1);
        let page = ("docs/decisions/0009-extra.md", "We add `crates/extra`.");
        assert_eq!(crates_are_known(&Tree::of(&[manifest, page])), []);
        let known = ("crates/gate/Cargo.toml", "");
        assert_eq!(crates_are_known(&Tree::of(&[known])), []);
    }
}
