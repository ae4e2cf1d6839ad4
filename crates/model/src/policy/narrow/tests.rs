//! A proposal takes away and never adds.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::host::Host;
use crate::policy::document::{Grant, Source};
use crate::policy::explain::{Explanation, Question};
use crate::policy::network::{RequestPath, Verdict};
use crate::policy::preset::Preset;

const GIB: u64 = 1 << 30;

fn read(file: &str, text: &str) -> Document {
    Document::parse(text.as_bytes(), Source { file, home: None }).expect(text)
}

fn host(text: &str) -> Effective {
    let none = |_: &Line| Ok::<_, ()>(Preset::default());
    read("host", text).resolve(&mut { none }).expect("no error")
}

fn proposal(text: &str) -> Proposal {
    let document = read("repo", text);
    let rules = |grants: &Vec<Grant>| {
        let rule = |grant: &Grant| match grant {
            Grant::Rule(rule) => Some(rule.clone()),
            Grant::Preset(_) => None,
        };
        grants.iter().filter_map(rule).collect()
    };
    Proposal {
        allow: document.allow.as_ref().map(rules),
        document,
    }
}

/// What is left of the host's policy, and what was refused.
fn narrowed(own: &str, asked: &str) -> (Effective, Vec<String>) {
    let mut policy = host(own);
    let refused = narrow(&mut policy, proposal(asked), &Limits::for_host(8 * GIB));
    (
        policy,
        refused.iter().map(|item| item.item.clone()).collect(),
    )
}

#[test]
fn rules_count_only_where_the_host_allows_them() {
    for (own, asked, kept, refused) in [
        ("'*'", "'a.example'", vec!["a.example"], vec![]),
        ("'a.example'", "'*'", vec!["a.example"], vec![]),
        (
            "'*.a.example'",
            "'b.a.example', 'a.example'",
            vec!["b.a.example"],
            vec!["a.example"],
        ),
        ("'a.example'", "'b.example'", vec![], vec!["b.example"]),
        ("'a.example'", "", vec![], vec![]),
        (
            "'GET,POST a.example'",
            "'POST,PUT a.example/x/**'",
            vec!["POST a.example/x/**"],
            vec![],
        ),
        (
            "'GET a.example'",
            "'PUT a.example'",
            vec![],
            vec!["PUT a.example"],
        ),
        (
            "'a.example/x/**'",
            "'a.example/x/y/*'",
            vec!["a.example/x/y/*"],
            vec![],
        ),
        (
            "'a.example/x/**'",
            "'a.example'",
            vec!["a.example/x/**"],
            vec![],
        ),
        (
            "'a.example/*/b'",
            "'a.example/a/*'",
            vec![],
            vec!["a.example/a/*"],
        ),
        (
            "'a.example:80'",
            "'a.example'",
            vec!["a.example:80"],
            vec![],
        ),
        (
            "'a.example'",
            "'a.example:8080'",
            vec![],
            vec!["a.example:8080"],
        ),
        (
            "'tcp a.example:443'",
            "'a.example'",
            vec![],
            vec!["a.example"],
        ),
        (
            "'a.example'",
            "'tcp a.example:443'",
            vec![],
            vec!["tcp a.example:443"],
        ),
        // A name of many that becomes one alone would be let into private networks.
        (
            "'tcp *.a.example:1'",
            "'tcp b.a.example:1'",
            vec![],
            vec!["tcp b.a.example:1"],
        ),
    ] {
        let own = format!("[network]\nallow = [{own}]");
        let asked = format!("[network]\nallow = [{asked}]");
        let (policy, lost) = narrowed(&own, &asked);
        let rules = policy.network.rules.0.iter();
        let rules: Vec<String> = rules.map(|rule| rule.to_string()).collect();
        assert_eq!(rules, kept, "{own} {asked}");
        assert_eq!(lost, refused, "{own} {asked}");
    }
}

#[test]
fn the_origin_of_a_narrowed_rule_is_both() {
    let (policy, _) = narrowed(
        "[network]\nallow = ['*']",
        "[network]\nallow = ['a.example']",
    );
    let from = policy.network.rules.0[0].from.to_string();
    assert_eq!(from, "host:2, narrowed by repo:2");
}

#[test]
fn a_proposal_without_a_list_leaves_it() {
    let own = "[network]\nallow = ['a.example']\n[env]\npass = ['LANG']\n[files]\nwrite = ['src']";
    let (policy, refused) = narrowed(own, "");
    assert_eq!((policy, refused), (host(own), Vec::new()));
}

#[test]
fn lower_budgets_and_bounds_count() {
    let (policy, refused) = narrowed(
        "[network]\nallow = [{ rule = 'a.example', per_minute = 10, upload = '1M' }]\n\
         [limits]\nmemory = '2G'\ndisk = 'none'",
        "[network]\nallow = [{ rule = 'a.example', per_minute = 20, download = '1K' }]\n\
         [limits]\nmemory = '4G'\ndisk = '1G'\ntime = '1h'\nprocesses = 1000\noutput = 'none'",
    );
    let budget = &policy.network.rules.0[0].budget;
    assert_eq!(budget.per_minute, Some(10));
    assert_eq!(budget.upload_bytes, Some(1 << 20));
    assert_eq!(budget.download_bytes, Some(1 << 10));
    let mut limits = Limits::for_host(8 * GIB);
    bound(&mut limits, &policy.limits);
    assert_eq!(limits.memory_bytes, Some(2 * GIB));
    assert_eq!(limits.disk_bytes, Some(GIB));
    assert_eq!(limits.time_seconds, Some(3600));
    assert_eq!(limits.processes, 512);
    assert_eq!(limits.output_bytes, Some(GIB));
    assert_eq!(
        refused,
        ["limits.memory", "limits.processes", "limits.output"]
    );
}

/// Each part would have the whole budget of the rule that it is a part of.
#[test]
fn a_budget_is_not_multiplied() {
    let own =
        "[network]\nallow = [{ rule = 'a.example', per_minute = 2 }, 'a.example', 'b.example']";
    let asked =
        "[network]\nallow = ['a.example/a/**', 'a.example/b/**', 'b.example/a', 'b.example/b']";
    let (policy, refused) = narrowed(own, asked);
    let rules: Vec<String> = policy
        .network
        .rules
        .0
        .iter()
        .map(|rule| rule.to_string())
        .collect();
    let kept = [
        "a.example/a/**",
        "a.example/a/**",
        "b.example/a",
        "b.example/b",
    ];
    assert_eq!(rules, kept);
    assert_eq!(policy.network.rules.0[0].budget.per_minute, Some(2));
    assert_eq!(refused, ["a.example/b/**"]);
    // What each connection has for itself is not shared.
    let (policy, refused) = narrowed(
        "[network]\nallow = [{ rule = 'a.example', time = '2s' }]",
        "[network]\nallow = ['a.example/a/**', 'a.example/b/**']",
    );
    assert_eq!((policy.network.rules.0.len(), refused.len()), (2, 0));
}

#[test]
fn what_only_the_host_can_give_is_refused_by_name() {
    let asked = "[[files.mount]]\nhost = '/etc'\ninside = '/x'\n\
         [network]\ncache = true\n[network.mock]\n'a.example' = 'http://127.0.0.1:1'\n\
         [secrets.T]\nfrom = 'env:T'\nhosts = ['a.example']\n\
         [env]\npass = ['HOME', 'LANG']\nset = { A = '1' }";
    let (policy, refused) = narrowed("[env]\npass = ['LANG', 'TERM']", asked);
    assert_eq!(policy, host("[env]\npass = ['LANG']"));
    let expected = [
        "files.mount /x",
        "network.cache",
        "network.mock a.example",
        "secrets.T",
        "env.pass HOME",
        "env.set A",
    ];
    assert_eq!(refused, expected);
}

#[test]
fn files_are_taken_away() {
    let (policy, refused) = narrowed(
        "[files]\nwrite = ['src/**', 'tests/a']\nexport = ['*.py', 'src/**']\nhide = ['x']",
        "[files]\nwrite = ['src/a', 'tests/**', 'docs']\nexport = ['lib/*.py', '*.rs']\n\
         hide = ['y']\nread_only = ['src/a/b']",
    );
    let texts = |lines: &[Line]| {
        lines
            .iter()
            .map(|line| line.text.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        texts(policy.files.write.as_deref().unwrap()),
        ["src/a", "tests/a"]
    );
    assert_eq!(texts(policy.files.export.as_deref().unwrap()), ["lib/*.py"]);
    assert_eq!(texts(&policy.files.hide), ["x", "y"]);
    assert_eq!(texts(&policy.files.read_only), ["src/a/b"]);
    assert_eq!(refused, ["docs", "*.rs"]);
}

fn list(items: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    let some = prop::sample::subsequence(items.to_vec(), 0..=items.len().min(4));
    prop::option::of(some.prop_map(|items| format!("[{}]", items.join(", "))))
}

const RULES: &[&str] = &[
    "'*'",
    "'*.example'",
    "'*.a.example'",
    "'a.example'",
    "'b.a.example'",
    "'b.a.example:8080'",
    "'GET a.example'",
    "'GET,POST a.example/x/**'",
    "'POST a.example/x/y'",
    "'a.example/x/*'",
    "'a.example/*/y'",
    "'tcp *.example:443'",
    "'tcp a.example:443'",
    "'tcp *:443'",
    "'10.0.0.1'",
    "{ rule = 'a.example', addresses = ['10.0.0.0/8'], per_minute = 5 }",
    "{ rule = 'a.example', addresses = ['10.1.0.0/16', '::a00:0/9'], per_minute = 9 }",
    "{ rule = '*.example', per_minute = 3 }",
    "{ rule = 'tcp *:443', per_minute = 4 }",
    "{ rule = 'tcp b.a.example:443', addresses = ['127.0.0.1'] }",
];
const AREAS: &[&str] = &["'src'", "'src/a'", "'src/a/b'", "'tests'", "'**'", "'SRC'"];
const GLOBS: &[&str] = &[
    "'*.py'",
    "'src/**'",
    "'src/*.py'",
    "'**'",
    "'a'",
    "'/src/a'",
    "'[s]rc'",
];

prop_compose! {
    fn file()(
        allow in list(RULES), deny in list(RULES), hide in list(GLOBS), write in list(AREAS),
        read_only in list(AREAS), export in list(GLOBS),
        pass in list(&["'LANG'", "'TERM'", "'HOME'"]),
        memory in prop::option::of(1u64..20), time in prop::option::of(1u64..100),
        mock in prop::bool::ANY,
    ) -> String {
        let mut text = String::new();
        let mut table = |name: &str, items: &[(&str, Option<String>)]| {
            text.push_str(&format!("[{name}]\n"));
            for (key, value) in items {
                if let Some(value) = value {
                    text.push_str(&format!("{key} = {value}\n"));
                }
            }
        };
        // A denial has no budget.
        let deny = deny.filter(|deny| !deny.contains('{'));
        table("network", &[("allow", allow), ("deny", deny)]);
        let double = Some("'http://127.0.0.1:9'".to_owned()).filter(|_| mock);
        table("network.mock", &[("'m.example'", double)]);
        table("files", &[
            ("hide", hide), ("write", write), ("read_only", read_only), ("export", export),
        ]);
        table("env", &[("pass", pass)]);
        table("limits", &[
            ("memory", memory.map(|most| format!("'{most}G'"))),
            ("time", time.map(|most| format!("'{most}h'"))),
        ]);
        text
    }
}

const NAMES: [&str; 6] = [
    "a.example",
    "b.a.example",
    "c.example",
    "m.example",
    "other.org",
    "10.0.0.1",
];

/// What a policy lets be reached of a small world, each with the rule that allows it.
fn reached<'a>(policy: &'a Effective) -> Vec<(String, &'a NetworkRule)> {
    let mut out = Vec::new();
    for name in NAMES {
        let host = Host::parse(name).expect(name);
        for port in [80, 443, 8080] {
            let mut add = |what: &str, verdict: Verdict<'a>| {
                if let Verdict::Allow(rule) = verdict {
                    out.push((format!("{name}:{port} {what}"), rule));
                }
            };
            if let Verdict::Allow(rule) = policy.network.rules.connection(&host, port)
                && rule.protocol == crate::policy::network::Protocol::Tcp
            {
                add("connection", Verdict::Allow(rule));
            }
            for method in ["GET", "POST", "PUT"] {
                for path in ["/", "/x", "/x/y", "/x/y/z", "/z/y"] {
                    let target = RequestPath::parse(path).expect(path);
                    let verdict = policy.network.rules.request(&host, port, method, &target);
                    add(&format!("{method} {path}"), verdict);
                }
            }
        }
    }
    out
}

/// All that a policy allows of a small world, as lines.
fn allowed(policy: &Effective) -> Vec<String> {
    let mut out = Vec::new();
    let addresses: Vec<IpAddr> = [
        "1.1.1.1",
        "10.0.0.1",
        "10.1.0.1",
        "127.0.0.1",
        "100::1",
        "::a00:1",
    ]
    .iter()
    .map(|text| text.parse().expect("an address"))
    .collect();
    for (what, rule) in reached(policy) {
        for address in addresses.iter().filter(|address| rule.takes(**address)) {
            out.push(format!("{what} at {address}"));
        }
        for budget in (1..20).filter(|n| rule.budget.per_minute.is_none_or(|most| *n <= most)) {
            out.push(format!("{what} {budget} a minute"));
        }
        out.push(what);
    }
    for name in NAMES {
        let host = Host::parse(name).expect(name);
        if policy.network.mocks.iter().any(|mock| mock.host == host) {
            out.push(format!("{name} has a double"));
        }
    }
    for path in [
        "a",
        "src/x.py",
        "src/a/x.py",
        "src/a/b/x",
        "tests/x",
        "SRC/x",
        "x.py",
        "rc",
    ] {
        let question = Question::Path(path.to_owned());
        let Explanation::Path {
            hidden,
            write,
            export,
            ..
        } = policy.explain(&question)
        else {
            unreachable!("a path was asked for");
        };
        let visible = hidden.is_none();
        for (word, yes) in [
            ("seen", visible),
            ("written", write.yes),
            ("exported", export.yes),
        ] {
            if yes && visible {
                out.push(format!("{path} {word}"));
            }
        }
        assert_eq!(
            visible,
            !crate::policy::glob::Globs::parse(
                &policy
                    .files
                    .hide
                    .iter()
                    .map(|line| &line.text)
                    .collect::<Vec<_>>()
            )
            .expect("patterns")
            .matches(Path::new(path))
        );
    }
    out.extend(
        policy
            .env
            .pass
            .iter()
            .map(|line| format!("passes {}", line.text)),
    );
    let mut limits = Limits::for_host(8 * GIB);
    bound(&mut limits, &policy.limits);
    let memory = limits.memory_bytes.unwrap_or(u64::MAX);
    out.extend(
        (0..30)
            .filter(|gib| gib * GIB <= memory)
            .map(|gib| format!("{gib} GiB")),
    );
    let hours = limits.time_seconds.unwrap_or(u64::MAX) / 3600;
    out.extend((0..hours.min(200)).map(|hour| format!("hour {hour}")));
    out
}

/// For each rule of the first policy: how often in a minute all that it allows can be reached under
/// the second one. Rules of which none has a budget are not told.
fn together(before: &Effective, after: &Effective) -> Vec<(u32, u32)> {
    let first: HashMap<String, &NetworkRule> = reached(before).into_iter().collect();
    let mut parts: HashMap<*const NetworkRule, (u32, HashMap<*const NetworkRule, u32>)> =
        HashMap::new();
    for (what, rule) in reached(after) {
        if let Some(own) = first.get(&what)
            && let Some(most) = own.budget.per_minute
        {
            let each = rule.budget.per_minute.unwrap_or(u32::MAX);
            let (_, after) = parts.entry(*own).or_insert((most, HashMap::new()));
            after.insert(rule, each);
        }
    }
    let sum = |parts: &HashMap<_, u32>| parts.values().fold(0u32, |a, b| a.saturating_add(*b));
    parts
        .values()
        .map(|(most, parts)| (*most, sum(parts)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_proposal_never_widens(own in file(), asked in file()) {
        let before = host(&own);
        let (after, _) = narrowed(&own, &asked);
        let wide: std::collections::HashSet<String> = allowed(&before).into_iter().collect();
        for item in allowed(&after) {
            prop_assert!(wide.contains(&item), "{item}\nhost:\n{own}\nrepo:\n{asked}");
        }
        for (most, now) in together(&before, &after) {
            prop_assert!(now <= most, "{now} for {most}\nhost:\n{own}\nrepo:\n{asked}");
        }
    }
}

#[test]
fn a_repository_lowers_bounds_and_switches_the_rule_off() {
    let text = "[review]\nmax_patch_lines = 500\nauto_approve = { max_lines = 5 }";
    let check = |asked: &str| {
        let mut policy = host(text);
        let refused = narrow(&mut policy, proposal(asked), &Limits::for_host(8 * GIB));
        let refused: Vec<String> = refused.into_iter().map(|refused| refused.item).collect();
        (policy.holding, refused)
    };
    let (holding, refused) = check("[review]\nmax_patch_lines = 400\nauto_approve = false");
    assert!(refused.is_empty() && holding.auto_approve.is_none());
    assert_eq!(holding.lines.and_then(|bound| bound.most), Some(400));
    let (holding, refused) = check(
        "[review]\nmax_patch_lines = 'none'\nmax_patch_files = 500\nmax_patch_bytes = '1K'\n\
         auto_approve = { checks = 'none', max_lines = 9999 }",
    );
    assert_eq!(refused.len(), 3, "{refused:?}");
    assert_eq!(holding.auto_approve.map(|rule| rule.max_lines), Some(5));
    assert_eq!(holding.bytes.and_then(|bound| bound.most), Some(1 << 10));
}
