//! Finds forms in a text, in a time that does not tell how much of a form the text contains.
//!
//! An automaton looks at the first bytes of all forms, with one table look-up for each byte of the text. What begins
//! like a form is compared with the whole form in constant time. So long forms cost no more than short ones, and the
//! reader of a stream cannot guess a value byte by byte with a clock.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use subtle::ConstantTimeEq as _;

use super::Match;
use super::forms::Form;

/// BOUND: how many bytes of a form the automaton knows: more than anybody can guess at once, also in codings that write
/// six characters for a byte. A table for whole forms of 1,000 bytes takes 100 ms to build.
const BEGINNING: usize = 128;

pub(super) struct Finder {
    beginnings: AhoCorasick,
    /// For each beginning the forms that a text with it may contain there, the longest first.
    candidates: Vec<Vec<usize>>,
}

impl Finder {
    /// `sought`: indexes into `forms`. `None`: there is nothing to find.
    pub(super) fn new(forms: &[(usize, Form)], sought: &[usize]) -> Option<Self> {
        let bytes = |form: usize| &forms[form].1.bytes[..];
        let beginning = |form: usize| &bytes(form)[..bytes(form).len().min(BEGINNING)];
        let mut all: Vec<&[u8]> = sought.iter().map(|form| beginning(*form)).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return None;
        }
        let candidates = all.iter().map(|whole| {
            let fits = |form: &usize| whole.starts_with(beginning(*form));
            let mut fitting: Vec<usize> = sought.iter().copied().filter(fits).collect();
            fitting.sort_by_key(|form| std::cmp::Reverse(bytes(*form).len()));
            fitting
        });
        let candidates = candidates.collect();
        let beginnings = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::DFA))
            // A prefilter skips ahead to rare bytes, and is slower where there are many of these: a reader with a
            // clock would find the first bytes so.
            .prefilter(false)
            .build(&all)
            .ok()?;
        Some(Self {
            beginnings,
            candidates,
        })
    }

    /// Adds all forms in a text to `found`, from left to right. None overlaps another.
    pub(super) fn find(&self, forms: &[(usize, Form)], text: &[u8], found: &mut Vec<Match>) {
        let mut at = 0;
        while let Some(hit) = self.beginnings.find(Input::new(text).span(at..text.len())) {
            let start = hit.start();
            let mut whole: Option<Match> = None;
            // All are compared, also after one that is there: the longest comes first.
            for form in &self.candidates[hit.pattern()] {
                let end = start + forms[*form].1.bytes.len();
                let there = text.get(start..end);
                let same = there.is_some_and(|there| there.ct_eq(&forms[*form].1.bytes).into());
                if same && whole.is_none() {
                    let form = *form;
                    whole = Some(Match { start, end, form });
                }
            }
            at = whole.as_ref().map_or(start + 1, |whole| whole.end);
            found.extend(whole);
        }
    }
}
