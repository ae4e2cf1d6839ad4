//! The order of attempts, as a table.

use super::*;

fn plain() -> Attempt {
    Attempt {
        run: RunId::random().unwrap(),
        name: None,
        status: RunStatus::Done,
        tree: "a".to_owned(),
        same_as: None,
        checks: 2,
        checks_held: 2,
        broke: 0,
        flaky: 0,
        own_exam: 0,
        serious: 0,
        warnings: 0,
        denials: 0,
        files: 1,
        insertions: 10,
        deletions: 0,
        duration_ms: 1000,
        changes_nothing: false,
    }
}

#[test]
fn what_counts_more_comes_first() {
    let change = |f: &dyn Fn(&mut Attempt)| {
        let mut own = plain();
        f(&mut own);
        own
    };
    // From the best to the worst, each by one thing.
    let order = [
        change(&|own| own.duration_ms = 1),
        plain(),
        change(&|own| own.insertions = 500),
        change(&|own| own.denials = 1),
        change(&|own| own.warnings = 1),
        change(&|own| own.serious = 1),
        change(&|own| own.flaky = 1),
        change(&|own| own.own_exam = 1),
        change(&|own| own.broke = 1),
        change(&|own| own.checks_held = 1),
        change(&|own| own.checks_held = 0),
        change(&|own| {
            own.changes_nothing = true;
            own.insertions = 0;
        }),
        change(&|own| own.status = RunStatus::Failed),
    ];
    for (better, worse) in order.iter().zip(&order[1..]) {
        assert!(rank(better) < rank(worse), "{better:?}\n{worse:?}");
    }
}

#[test]
fn a_tie_is_broken_the_same_way_each_time() {
    let (one, two) = (plain(), plain());
    assert_ne!(one.run, two.run);
    let first = if one.run < two.run { one.run } else { two.run };
    for mut both in [vec![one.clone(), two.clone()], vec![two, one]] {
        both.sort_by_key(rank);
        assert_eq!(both[0].run, first);
    }
    let mut other = plain();
    other.tree = "b".to_owned();
    let text = why(&[plain(), other]);
    assert!(text.contains("by nothing but its time"), "{text}");
    let text = why(&[plain()]);
    assert!(text.contains("the only one that left a bundle"), "{text}");
}

#[test]
fn a_sentence_says_what_decided() {
    let mut other = plain();
    other.tree = "b".to_owned();
    other.checks_held = 1;
    let text = why(&[plain(), other.clone()]);
    assert!(text.contains("2 of 2 checks hold against 1 of 2"), "{text}");
    other.checks_held = 2;
    other.insertions = 90;
    let text = why(&[plain(), other.clone()]);
    assert!(text.contains("10 changed lines against 90"), "{text}");
    other.tree = "a".to_owned();
    assert!(why(&[plain(), other]).starts_with("all of them changed the same"));
}
