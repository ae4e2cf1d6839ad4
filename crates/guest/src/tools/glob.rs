//! `glob`: files by the form of their path.

use std::path::Path;

use globset::GlobBuilder;
use ringfence_model::tools::{DEFAULT_PATHS, GlobAnswer, GlobRequest, MAX_PATHS};

use crate::failure::{Hint as _, Outcome, denied, invalid};
use crate::measure::{Fit, Room};
use crate::place::{Last, Parents, Root};
use crate::walk::walk;

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn glob(root: &Root, request: GlobRequest) -> Outcome<GlobAnswer> {
    let limit = request.limit.unwrap_or(DEFAULT_PATHS);
    if limit == 0 || limit > MAX_PATHS {
        return Err(invalid(format!(
            "a limit of {limit} is not between 1 and {MAX_PATHS}"
        )));
    }
    let Some(pattern) = root.beneath(Path::new(&request.pattern)) else {
        let message = format!("the pattern `{}` leads out of the root", request.pattern);
        return Err(denied(message).hint("give it relative to `path`"));
    };
    let pattern = pattern.to_string_lossy();
    let pattern = pattern.strip_prefix("./").unwrap_or(&pattern);
    let matcher = GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|error| invalid(format!("the pattern cannot be read: {error}")))?
        .compile_matcher();
    let place = root.find(&request.path, Last::Follow, Parents::Existing)?;
    place.must_stat()?;
    let start = root.full(&place);
    let mut answer = GlobAnswer::default();
    let mut room = Room::new();
    let (walk, odd) = walk(root, &start, request.hidden.into(), request.ignored)?;
    for found in walk.build().flatten() {
        if found.depth() == 0 || found.file_type().is_none_or(|kind| kind.is_dir()) {
            continue;
        }
        let below = found.path().strip_prefix(&start).unwrap_or(found.path());
        if !matcher.is_match(below) {
            continue;
        }
        let path = root.relative(found.path());
        if answer.paths.len() == limit || room.take(&path) == Fit::Full {
            answer.truncated = true;
            break;
        }
        answer.paths.push(path);
    }
    odd.check(root)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use ringfence_model::tools::FailureKind;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Bench;

    fn paths(bench: &Bench, request: Value) -> Vec<String> {
        let answer = bench.call(glob, request).unwrap();
        answer.paths.iter().map(|path| path.to_text()).collect()
    }

    #[test]
    fn files_are_found_by_the_form_of_their_path() {
        let bench = Bench::new();
        for name in [
            "src/main.rs",
            "src/deep/er/x.rs",
            "top.rs",
            ".github/ci.yml",
            "target/gen.rs",
            ".git/x.rs",
        ] {
            bench.file(name, "");
        }
        bench.file(".gitignore", "/target/\n");
        let full = format!(
            "{}/src/*.rs",
            bench.path("").to_str().unwrap().trim_end_matches('/')
        );
        for (request, expected) in [
            (json!({"pattern": "*.rs"}), &["top.rs"][..]),
            (
                json!({"pattern": "**/*.rs"}),
                &["src/deep/er/x.rs", "src/main.rs", "top.rs"],
            ),
            (json!({"pattern": "*.rs", "path": "src"}), &["src/main.rs"]),
            (
                json!({"pattern": "./src/{main,other}.rs"}),
                &["src/main.rs"],
            ),
            (json!({"pattern": full}), &["src/main.rs"]),
            (json!({"pattern": ".github/**"}), &[".github/ci.yml"]),
            (
                json!({"pattern": "target/*", "ignored": "show"}),
                &["target/gen.rs"],
            ),
            (json!({"pattern": "src"}), &[]),
        ] {
            assert_eq!(paths(&bench, request.clone()), expected, "{request}");
        }
        let answer = bench
            .call(glob, json!({"pattern": "**/*.rs", "limit": 2}))
            .unwrap();
        assert_eq!((answer.paths.len(), answer.truncated), (2, true));
        for (request, kind) in [
            (json!({"pattern": "/etc/*"}), FailureKind::Denied),
            (json!({"pattern": "{"}), FailureKind::Invalid),
            (json!({"pattern": "*", "path": ".."}), FailureKind::Denied),
        ] {
            assert_eq!(bench.call(glob, request).unwrap_err().kind, kind);
        }
    }
}
