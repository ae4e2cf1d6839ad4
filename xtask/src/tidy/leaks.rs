//! Nothing in the repository tells where it was written or from where its packages came.
//!
//! The texts that are looked for are put together from parts, so that this file holds none.

use super::{Finding, Tree, exceptions};

/// Absolute paths that are only right on one machine.
pub fn no_machine_paths(tree: &Tree) -> Vec<Finding> {
    let exceptions = exceptions::read(tree);
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            for found in machine_paths(line) {
                let excepted = path == exceptions::FILE
                    || exceptions.iter().any(|exception| {
                        exception.rule == "machine-path"
                            && exception.path == path
                            && found.starts_with(exception.detail)
                    });
                if !excepted {
                    findings.push(Finding::new(
                        path,
                        index + 1,
                        format!("`{found}` is a path of one machine"),
                    ));
                }
            }
        }
    }
    findings
}

/// Package registries are what the tools say they are, not what this repository says.
pub fn no_registry_hosts(tree: &Tree) -> Vec<Finding> {
    let hosts = registry_hosts();
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            findings.extend(
                hosts
                    .iter()
                    .filter(|host| names_host(line, host))
                    .map(|host| {
                        Finding::new(
                            path,
                            index + 1,
                            format!("names the package registry `{host}`"),
                        )
                    }),
            );
        }
    }
    findings
}

fn machine_paths(line: &str) -> Vec<&str> {
    let in_path = |c: char| c.is_alphanumeric() || "._-/~$}*".contains(c);
    let mut found = Vec::new();
    for top in ["work", "root", "home"] {
        let start = format!("/{top}/");
        for (at, _) in line.match_indices(&start) {
            // Part of a longer path such as `/proc/1/root/`.
            if line[..at].ends_with(in_path) {
                continue;
            }
            let tail = &line[at..];
            let end = tail
                .find(|c: char| !(c.is_alphanumeric() || "._-/".contains(c)))
                .unwrap_or(tail.len());
            let whole = &tail[..end];
            let below = whole[start.len()..].split('/').next().unwrap_or_default();
            // The home inside every sandbox is ours.
            let ours = top == "home" && below == "agent";
            if !ours && !below.is_empty() {
                found.push(whole);
            }
        }
    }
    found
}

fn registry_hosts() -> Vec<String> {
    [
        ["crates", ".io"],
        ["npmjs", ".org"],
        ["npmjs", ".com"],
        ["pypi", ".org"],
        ["pythonhosted", ".org"],
        ["rubygems", ".org"],
        ["proxy.golang", ".org"],
        ["deb.debian", ".org"],
        ["archive.ubuntu", ".com"],
        ["registry-1.docker", ".io"],
        ["repo.maven.apache", ".org"],
    ]
    .iter()
    .map(|parts| parts.concat())
    .collect()
}

/// The host itself or a name below it, and not the beginning of a longer one.
fn names_host(line: &str, host: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '-';
    line.match_indices(host).any(|(at, _)| {
        !line[..at].ends_with(in_name) && !line[at + host.len()..].starts_with(in_name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn machine_paths_are_found() {
        let [work, root, home] = ["work", "root", "home"].map(|top| format!("/{top}"));
        for (line, fine) in [
            (format!("cd {work}/x"), false),
            (format!("\"{root}/.cargo\""), false),
            (format!("{home}/someone/x"), false),
            (format!("{home}/agent/.cache"), true),
            (format!("{home}/"), true),
            (format!("{root} and {home}"), true),
            ("/workspace/x".to_owned(), true),
            (format!("/proc/1{root}/etc"), true),
            (format!("$TMP{work}/x"), true),
        ] {
            assert_eq!(machine_paths(&line).is_empty(), fine, "{line}");
        }
    }

    #[test]
    fn a_machine_path_can_be_excepted() {
        let target = format!("/{}/.ssh", "root");
        let line = format!("machine-path a.txt {target} an attack names it");
        let text = format!("cat {target}/id");
        let tree = Tree::of(&[
            ("a.txt", &text),
            ("b.txt", &text),
            (exceptions::FILE, &line),
        ]);
        assert_eq!(places(&no_machine_paths(&tree)), ["b.txt:1"]);
    }

    #[test]
    fn registry_hosts_are_found() {
        let host = ["crates", ".io"].concat();
        for (line, fine) in [
            (format!("https://{host}/x"), false),
            (format!("https://static.{host}"), false),
            (format!("{host}-index"), true),
            (format!("my{host}"), true),
            ("example.org".to_owned(), true),
        ] {
            let found = no_registry_hosts(&Tree::of(&[("a", &line)]));
            assert_eq!(found.is_empty(), fine, "{line}");
        }
    }
}
