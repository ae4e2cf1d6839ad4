//! Rules for documents: links that lead somewhere, and a change log that is open.

use super::{Finding, Tree};

pub fn changelog_has_unreleased(tree: &Tree) -> Vec<Finding> {
    let path = "CHANGELOG.md";
    let open = tree.text(path).unwrap_or_default().lines().any(|line| {
        matches!(
            line.trim().to_ascii_lowercase().as_str(),
            "## unreleased" | "## [unreleased]"
        )
    });
    if open {
        return Vec::new();
    }
    vec![Finding::new(path, 1, "there is no section `## Unreleased`")]
}

/// Relative links of every `.md` file lead to a file or directory of the repository, and a
/// fragment to a heading.
pub fn links_resolve(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md") {
        for (line, target) in links(text) {
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let Some(resolved) = resolve(path, file) else {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{target}` leads out of the repository"),
                ));
                continue;
            };
            if !tree.exists(&resolved) {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{target}` leads to nothing"),
                ));
            } else if !fragment.is_empty() && !has_heading(tree, &resolved, fragment) {
                findings.push(Finding::new(
                    path,
                    line,
                    format!("`{resolved}` has no heading for `#{fragment}`"),
                ));
            }
        }
    }
    findings
}

/// Targets of inline links outside code, without those that name a scheme.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Every second piece between back-ticks is code, unless the link's text itself is quoted.
        for (at, _) in line.match_indices("](") {
            let in_code = line[..at].matches('`').count() % 2 == 1;
            let tail = &line[at + 2..];
            let Some(end) = tail.find(')') else { continue };
            let target = tail[..end].split(' ').next().unwrap_or_default();
            let has_scheme = target.contains("://") || target.starts_with("mailto:");
            if !in_code && !has_scheme && !target.is_empty() {
                found.push((index + 1, target));
            }
        }
    }
    found
}

/// The path from the top of the repository; `None` where it leads above it.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => return None,
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn has_heading(tree: &Tree, path: &str, fragment: &str) -> bool {
    let Some(text) = tree.text(path) else {
        return false;
    };
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| slug(line.trim_start_matches('#').trim()) == fragment)
}

/// As the usual renderers make it.
fn slug(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        for (text, fine) in [
            ("[a](b.md)", true),
            ("[a](./b.md#the-heading-b)", true),
            ("[a](b.md#other)", false),
            ("[a](c.md)", false),
            ("[a](../README.md)", true),
            ("[a](../..)", false),
            ("[a](/etc/passwd)", false),
            ("[a](..)", true),
            ("[a](../src)", true),
            ("[a](#here)", true),
            ("[a](https://example.org/x)", true),
            ("`[a](c.md)`", true),
            ("[`a`](c.md)", false),
            ("```\n[a](c.md)\n```", true),
        ] {
            let page = format!("# Here\n{text}\n");
            let tree = Tree::of(&[
                ("docs/a.md", &page),
                ("docs/b.md", "## The heading: B\n"),
                ("README.md", ""),
                ("src/x.rs", ""),
            ]);
            assert_eq!(links_resolve(&tree).is_empty(), fine, "{text}");
        }
    }

    #[test]
    fn a_broken_link_is_reported_at_its_line() {
        let tree = Tree::of(&[("a.md", "x\n\n[b](c.md)")]);
        assert_eq!(places(&links_resolve(&tree)), ["a.md:3"]);
    }

    #[test]
    fn the_change_log_is_open() {
        for (text, fine) in [
            ("# Changes\n\n## Unreleased\n", true),
            ("## [Unreleased]\n", true),
            ("## 0.1.0\n", false),
        ] {
            let tree = Tree::of(&[("CHANGELOG.md", text)]);
            assert_eq!(changelog_has_unreleased(&tree).is_empty(), fine, "{text}");
        }
        assert_eq!(changelog_has_unreleased(&Tree::default()).len(), 1);
    }
}
