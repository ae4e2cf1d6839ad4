//! `search`: lines by their content, with ripgrep's own crates.
//!
//! Files come in the order of their paths, so that the same tree gives the same answer, and an
//! answer that is cut is cut at the same place.

use std::path::Path;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use ignore::overrides::OverrideBuilder;
use ringfence_model::ByteText;
use ringfence_model::tools::{
    Case, DEFAULT_MATCHES, MAX_CONTEXT, MAX_MATCHES, SearchAnswer, SearchRequest,
};

use crate::content;
use crate::failure::{Failure, Hint as _, Outcome, invalid};
use crate::measure::{Fit, Room};
use crate::place::{Last, Parents, Root};
use crate::walk::walk;

mod lines;

use lines::Lines;

/// BOUND: memory for one line, or for one file where matches go over lines.
const MAX_HEAP: usize = 64 << 20;

/// What was meant by a request, checked.
struct Search {
    matcher: RegexMatcher,
    searcher: Searcher,
    before: usize,
    after: usize,
    limit: usize,
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "each tool takes its request by value: some use it up"
)]
pub fn search(root: &Root, request: SearchRequest) -> Outcome<SearchAnswer> {
    let mut search = Search::new(&request)?;
    let place = root.find(&request.path, Last::Follow, Parents::Existing)?;
    place.must_stat()?;
    let start = root.full(&place);
    let (mut walk, odd) = walk(root, &start, request.hidden.into(), request.ignored)?;
    let mut globs = OverrideBuilder::new(&start);
    let unread = |error| invalid(format!("`globs` cannot be read: {error}"));
    for glob in &request.globs {
        globs.add(glob).map_err(unread)?;
    }
    walk.overrides(globs.build().map_err(unread)?);
    let mut answer = SearchAnswer::default();
    let mut room = Room::new();
    for found in walk.build() {
        let Ok(found) = found else {
            answer.files_unread += 1;
            continue;
        };
        if found.file_type().is_none_or(|kind| !kind.is_file()) {
            continue;
        }
        search.file(root, found.path(), &mut answer, &mut room);
        if answer.truncated {
            break;
        }
    }
    odd.check(root)?;
    Ok(answer)
}

impl Search {
    fn new(request: &SearchRequest) -> Outcome<Self> {
        let context = request.context.unwrap_or(0);
        let before = request.before.unwrap_or(context);
        let after = request.after.unwrap_or(context);
        if before.max(after) > MAX_CONTEXT {
            return Err(invalid(format!(
                "a context of {} lines is over the bound of {MAX_CONTEXT}",
                before.max(after)
            )));
        }
        let limit = request.limit.unwrap_or(DEFAULT_MATCHES);
        if limit == 0 || limit > MAX_MATCHES {
            return Err(invalid(format!(
                "a limit of {limit} is not between 1 and {MAX_MATCHES}"
            )));
        }
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .multi_line(request.multiline)
            .before_context(before)
            .after_context(after)
            .heap_limit(Some(MAX_HEAP))
            .build();
        Ok(Self {
            matcher: matcher(request)?,
            searcher,
            before,
            after,
            limit,
        })
    }

    /// Searches one file and adds what it finds.
    fn file(&mut self, root: &Root, path: &Path, answer: &mut SearchAnswer, room: &mut Room) {
        let path = root.relative(path);
        let Ok(file) = open(root, &path) else {
            answer.files_unread += 1;
            return;
        };
        answer.files_searched += 1;
        let mut lines = Lines::new(&self.matcher, self.limit - answer.matches.len());
        let searched = self.searcher.search_file(&self.matcher, &file, &mut lines);
        if searched.is_err() {
            answer.files_unread += 1;
        }
        answer.truncated |= lines.is_cut();
        let mut any = 0;
        for found in lines.matches(&path, self.before, self.after) {
            if room.take(&found) == Fit::Full {
                answer.truncated = true;
                break;
            }
            any = 1;
            answer.matches.push(found);
        }
        answer.files_with_matches += any;
    }
}

/// HOSTILE: what the walk saw as a file may be something else by now.
fn open(root: &Root, path: &ByteText) -> Outcome<std::fs::File> {
    let place = root.find(path, Last::Keep, Parents::Existing)?;
    content::open(&place).map(|(file, _)| file)
}

fn matcher(request: &SearchRequest) -> Outcome<RegexMatcher> {
    if request.pattern.is_empty() {
        return Err(invalid("the pattern is empty".to_owned()));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .fixed_strings(request.fixed)
        .word(request.word)
        .case_insensitive(request.case == Case::Insensitive)
        .case_smart(request.case == Case::Smart);
    if !request.multiline {
        builder.line_terminator(Some(b'\n'));
    }
    builder
        .build(&request.pattern)
        .map_err(|error| refused_pattern(request, &error))
}

fn refused_pattern(request: &SearchRequest, error: &grep_regex::Error) -> Failure {
    let failure = invalid(format!("the pattern cannot be read: {error}"));
    match error.kind() {
        grep_regex::ErrorKind::NotAllowed(_) => {
            failure.hint("use `multiline` for a match that goes over the end of a line")
        }
        grep_regex::ErrorKind::Regex(_) if !request.fixed => {
            failure.hint("use `fixed` to search for the text as it is")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests;
