//! What holds for every split.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::imports::Graph;
use super::*;

fn paths() -> impl Strategy<Value = BTreeSet<ByteText>> {
    let name = "(test_|)[a-c]{1,2}(_test|)\\.(py|rs|go|ts|txt)|Cargo\\.(lock|toml)|go\\.sum";
    let place = "(src/|lib/|tests/|src/[ab]/|tests/[ab]/|)";
    let path = (place, name).prop_map(|(place, name)| ByteText::from(&*format!("{place}{name}")));
    proptest::collection::btree_set(path, 1..60)
}

#[derive(Clone, Debug)]
struct Case {
    files: BTreeMap<ByteText, When>,
    graph: Graph,
    groups: Vec<Vec<ByteText>>,
    per_task: usize,
    keep: Keep,
    way: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let edges = proptest::collection::vec((any::<usize>(), any::<usize>()), 0..80);
    let whens = proptest::collection::vec(0..12u8, 60);
    let keep = prop_oneof![
        Just(Keep::Tests),
        Just(Keep::Directory),
        Just(Keep::Nothing)
    ];
    (paths(), edges, whens, 1..12usize, keep, 0..4usize).prop_map(
        |(paths, edges, whens, per_task, keep, way)| {
            let list: Vec<ByteText> = paths.iter().cloned().collect();
            let mut graph = Graph::default();
            for (from, to) in edges {
                let pick = |number: usize| list[number % list.len()].clone();
                graph.add(&pick(from), vec![pick(to)]);
            }
            let when = |number: &u8| match number {
                0 => When::First,
                1 => When::Last,
                _ => When::Between,
            };
            let files = paths.iter().cloned().zip(whens.iter().map(when)).collect();
            let mut groups = vec![Vec::new(), Vec::new(), Vec::new()];
            for (number, path) in list.iter().enumerate() {
                groups[usize::from(whens[number] % 3)].push(path.clone());
            }
            Case {
                files,
                graph,
                groups,
                per_task,
                keep,
                way,
            }
        },
    )
}

impl Case {
    fn rules(&self) -> Rules<'_> {
        Rules {
            way: match self.way {
                0 => Way::Path,
                1 => Way::Directory,
                2 => Way::Dependencies(&self.graph),
                _ => Way::Groups(&self.groups),
            },
            per_task: self.per_task,
            keep: self.keep,
        }
    }
}

proptest! {
    #[test]
    fn r9_a_split_is_disjoint_complete_and_bounded(case in cases()) {
        let parts = split(&case.files, case.rules());
        let all: Vec<&ByteText> = parts.iter().flat_map(|part| &part.files).collect();
        let set: BTreeSet<&ByteText> = all.iter().copied().collect();
        prop_assert_eq!(all.len(), set.len());
        prop_assert_eq!(set, case.files.keys().collect());
        for part in &parts {
            prop_assert!(!part.files.is_empty());
            prop_assert!(part.files.is_sorted());
            prop_assert_eq!(part.files.len() > case.per_task, part.oversize.is_some());
        }
        prop_assert!(parts.is_sorted_by_key(|part| part.when));
        prop_assert!(parts.iter().filter(|part| part.when == When::First).count() <= 1);
        prop_assert!(parts.iter().filter(|part| part.when == When::Last).count() <= 1);
    }

    #[test]
    fn the_order_of_what_comes_in_does_not_matter(case in cases(), turn in 0..60usize) {
        let mut other = case.clone();
        for group in &mut other.groups {
            let turn = turn % group.len().max(1);
            group.rotate_left(turn);
        }
        prop_assert_eq!(split(&case.files, case.rules()), split(&other.files, other.rules()));
    }

    #[test]
    fn what_belongs_together_is_together(case in cases()) {
        let parts = split(&case.files, case.rules());
        let place = |path: &ByteText| parts.iter().position(|part| part.files.contains(path));
        let between = |path: &ByteText| {
            place(path).is_some_and(|n| parts[n].when == When::Between)
        };
        let files: Vec<&ByteText> = case.files.keys().filter(|path| between(path)).collect();
        if case.keep != Keep::Nothing && !matches!(case.rules().way, Way::Groups(_)) {
            for (test, subject) in companions::pairs(&files) {
                prop_assert_eq!(place(test), place(subject));
            }
        }
        match case.rules().way {
            Way::Groups(groups) => {
                for part in parts.iter().filter(|part| part.when == When::Between) {
                    let own = |group: &&Vec<ByteText>| group.contains(&part.files[0]);
                    let group = groups.iter().find(own).unwrap();
                    prop_assert!(part.files.iter().all(|path| group.contains(path)));
                }
            }
            Way::Dependencies(graph) if case.keep == Keep::Nothing => {
                for from in &files {
                    for to in graph.of(from).filter(|to| between(to)) {
                        // What is in a circle is in one part; else what is needed is not later.
                        prop_assert!(place(to) <= place(from), "{from} needs {to}");
                    }
                }
            }
            _ => {}
        }
    }
}

fn named(parts: &[Part]) -> Vec<Vec<String>> {
    let texts = |part: &Part| part.files.iter().map(ByteText::to_text).collect();
    parts.iter().map(texts).collect()
}

fn between(list: &[&str]) -> BTreeMap<ByteText, When> {
    let file = |path: &&str| (ByteText::from(*path), When::Between);
    list.iter().map(file).collect()
}

#[test]
fn directories_are_whole_where_they_fit() {
    let files = between(&["a/1.x", "a/2.x", "a/3.x", "b/1.x", "b/2.x", "c/1.x"]);
    let rules = |keep, way| Rules {
        way,
        per_task: 4,
        keep,
    };
    let plain = split(&files, rules(Keep::Tests, Way::Path));
    assert_eq!(
        plain.iter().map(|p| p.files.len()).collect::<Vec<_>>(),
        [4, 2]
    );
    let whole = split(&files, rules(Keep::Directory, Way::Path));
    assert_eq!(
        whole.iter().map(|p| p.files.len()).collect::<Vec<_>>(),
        [3, 3]
    );
    let apart = split(&files, rules(Keep::Tests, Way::Directory));
    assert_eq!(
        apart.iter().map(|p| p.files.len()).collect::<Vec<_>>(),
        [3, 2, 1]
    );
}

#[test]
fn what_is_needed_comes_first_and_a_circle_is_one() {
    let files = between(&["a.py", "b.py", "c.py", "d.py", "test_a.py"]);
    let mut graph = Graph::default();
    for (from, to) in [
        ("a.py", "d.py"),
        ("b.py", "c.py"),
        ("c.py", "b.py"),
        ("b.py", "a.py"),
    ] {
        graph.add(&from.into(), vec![to.into()]);
    }
    let rules = Rules {
        way: Way::Dependencies(&graph),
        per_task: 1,
        keep: Keep::Tests,
    };
    let parts = split(&files, rules);
    assert_eq!(
        named(&parts),
        [
            vec!["d.py"],
            vec!["a.py", "test_a.py"],
            vec!["b.py", "c.py"]
        ]
    );
    let why: Vec<Option<Oversize>> = parts.iter().map(|part| part.oversize).collect();
    assert_eq!(why, [None, Some(Oversize::Tests), Some(Oversize::Cycle)]);
}

#[test]
fn lock_files_are_a_task_of_their_own() {
    let mut files = between(&["Cargo.toml", "Cargo.lock", "src/lib.rs", "web/package.json"]);
    files.insert("src/types.rs".into(), When::First);
    let rules = Rules {
        way: Way::Path,
        per_task: 10,
        keep: Keep::Tests,
    };
    assert_eq!(
        named(&split(&files, rules)),
        [
            vec!["src/types.rs"],
            vec!["src/lib.rs", "web/package.json"],
            vec!["Cargo.lock", "Cargo.toml"]
        ]
    );
}
