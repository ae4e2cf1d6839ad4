//! JUnit's XML, where a check prints it.
//!
//! HOSTILE: a small reader of our own that knows elements and attributes and nothing else. A
//! document type is refused, so that there is no entity that could grow or reach anything.

use super::{Tally, Text};

/// BOUND: elements inside one another; real reports have four.
const DEPTH: usize = 32;

/// A test case that is open.
#[derive(Clone, Copy, Default)]
struct Case {
    failed: bool,
    skipped: bool,
}

/// Reads each report in the text.
pub(super) fn junit(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    let (mut rest, mut line) = (text.all, 0);
    loop {
        let begins = ["<?xml", "<testsuites", "<testsuite"];
        let here = rest.trim_start_matches([' ', '\t']);
        if begins.iter().any(|word| here.starts_with(word)) {
            // What looks like a report and is none: nothing below it is believed either, and nothing
            // is read twice.
            let Some((own, after)) = report(here) else {
                break;
            };
            line += here[..here.len() - after.len()].matches('\n').count();
            tally.add(line, own.passed, own.failed, own.skipped);
            own.failing.iter().for_each(|name| tally.name(name));
            tally.more += own.more;
            rest = after;
            continue;
        }
        match rest.split_once('\n') {
            Some((_, after)) => (rest, line) = (after, line + 1),
            None => break,
        }
    }
    tally.found()
}

/// One report, and what follows it.
fn report(text: &str) -> Option<(Tally, &str)> {
    let mut tally = Tally::default();
    let mut open: Vec<&str> = Vec::new();
    let mut case: Option<Case> = None;
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (_, tag) = rest.split_once('<')?;
        if let Some(tag) = tag.strip_prefix("!--") {
            rest = tag.split_once("-->")?.1;
            continue;
        }
        if let Some(tag) = tag.strip_prefix("![CDATA[") {
            rest = tag.split_once("]]>")?.1;
            continue;
        }
        if let Some(tag) = tag.strip_prefix('?') {
            rest = tag.split_once("?>")?.1;
            continue;
        }
        if tag.starts_with('!') {
            return None;
        }
        let (inner, after) = element(tag)?;
        rest = after;
        if let Some(closed) = inner.strip_prefix('/') {
            let closed = closed.trim_end();
            if open.pop() != Some(closed) {
                return None;
            }
            if closed == "testcase" {
                end(&mut tally, case.take()?, &name);
            }
        } else {
            let alone = inner.ends_with('/');
            let inner = inner.trim_end_matches('/');
            let (element, attributes) =
                inner.split_once(char::is_whitespace).unwrap_or((inner, ""));
            if open.is_empty() && !matches!(element, "testsuites" | "testsuite") {
                return None;
            }
            match (element, &mut case) {
                ("testcase", None) => {
                    name = named(attributes);
                    case = Some(Case::default());
                }
                ("testcase", Some(_)) => return None,
                ("failure" | "error", Some(case)) => case.failed = true,
                ("skipped", Some(case)) => case.skipped = true,
                _ => {}
            }
            if !alone {
                open.push(element);
            } else if element == "testcase" {
                end(&mut tally, case.take()?, &name);
            }
            if open.len() > DEPTH {
                return None;
            }
        }
        if open.is_empty() {
            return Some((tally, rest));
        }
    }
}

/// A tag up to its `>`, which may stand in an attribute.
fn element(tag: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (at, byte) in tag.bytes().enumerate() {
        match (quote, byte) {
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if byte == open => quote = None,
            (None, b'>') => return Some((&tag[..at], &tag[at + 1..])),
            (None, b'<') => return None,
            _ => {}
        }
    }
    None
}

fn end(tally: &mut Tally, case: Case, name: &str) {
    match (case.failed, case.skipped) {
        (true, _) => {
            tally.failed += 1;
            tally.name(name);
        }
        (_, true) => tally.skipped += 1,
        _ => tally.passed += 1,
    }
}

/// `CLASS NAME` of a test case.
fn named(attributes: &str) -> String {
    let class = attribute(attributes, "classname").unwrap_or_default();
    let name = attribute(attributes, "name").unwrap_or_default();
    format!("{class} {name}").trim().to_owned()
}

fn attribute(attributes: &str, wanted: &str) -> Option<String> {
    let mut rest = attributes;
    loop {
        let (name, value) = rest.split_once('=')?;
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, after) = value[1..].split_once(quote)?;
        if name.trim() == wanted {
            return Some(text(value));
        }
        rest = after;
    }
}

/// The five names that XML itself has; anything else stays as it is written.
fn text(value: &str) -> String {
    let pairs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
    ];
    let mut text = value.to_owned();
    for (name, sign) in pairs {
        text = text.replace(name, sign);
    }
    text.replace("&amp;", "&")
}
