//! Trees that something in the way from sandbox to repository could get wrong: each must come out of
//! `ringfence apply` as it was in the sandbox, to the byte, in the files and as a commit.

/// A name, what is there before, what the agent does. Each is done in a directory of its own.
pub const CASES: &[(&str, &str, &str)] = &[
    // Names.
    (
        "newline",
        r#"echo 1 > "$(printf 'a\nb')""#,
        r#"echo 2 >> "$(printf 'a\nb')"; echo 3 > "$(printf '\nx')""#,
    ),
    (
        "quote",
        r#"echo 1 > 'q"q'; echo 1 > '"'"#,
        r#"echo 2 >> 'q"q'; rm '"'; echo 3 > '"a"'"#,
    ),
    (
        "apostrophe",
        "echo 1 > \"a'b\"",
        "echo 2 > \"a'b\"; echo 3 > \"''\"",
    ),
    (
        "tab",
        r#"echo 1 > "$(printf 'a\tb')""#,
        r#"echo 2 >> "$(printf 'a\tb')"; echo 3 > "$(printf 'x\t')""#,
    ),
    (
        "not-utf-8",
        r#"echo 1 > "$(printf '\377\376')""#,
        r#"echo 2 >> "$(printf '\377\376')"; echo 3 > "$(printf 'a\200b')""#,
    ),
    (
        "not-utf-8-moved",
        r#"seq 50 > "$(printf '\351t\351')""#,
        r#"mkdir "$(printf 'd\377')"; mv "$(printf '\351t\351')" "$(printf 'd\377/\370')""#,
    ),
    ("dash", "echo 1 > ./-n", "echo 2 >> ./-n; echo 3 > ./--help"),
    (
        "trailing-blank",
        "echo 1 > 'a '",
        "echo 2 >> 'a '; echo 3 > 'b  '; mkdir 'd '; echo 4 > 'd / '",
    ),
    (
        "leading-blank",
        "echo 1 > ' a'",
        "echo 2 >> ' a'; echo 3 > ' '",
    ),
    (
        "backslash",
        r"echo 1 > 'a\b'",
        r"echo 2 >> 'a\b'; echo 3 > 'c\\'; echo 4 > '\n'",
    ),
    (
        "escape",
        r#"echo 1 > "$(printf 'a\033[31m')""#,
        r#"echo 2 >> "$(printf 'a\033[31m')"; echo 3 > "$(printf 'b\001\177')""#,
    ),
    (
        "long-name",
        r#"echo 1 > "$(printf '%0255d' 0)""#,
        r#"echo 2 >> "$(printf '%0255d' 0)"; echo 3 > "$(printf '%0254d' 0)x""#,
    ),
    (
        "patterns",
        "echo 1 > '*'; echo 1 > '?'",
        "echo 2 >> '*'; rm '?'; echo 3 > '[a]'; echo 4 > '!b'; echo 5 > '#c'",
    ),
    (
        "magic",
        "echo 1 > ':a'",
        "echo 2 >> ':a'; echo 3 > ':(top)b'; echo 4 > ':!c'",
    ),
    (
        "shell",
        "echo 1 > '$HOME'",
        "echo 2 >> '$HOME'; echo 3 > '`id`'; echo 4 > '$(id)'; echo 5 > ';'",
    ),
    ("arrow", "seq 40 > 'a => b'", "mv 'a => b' '{c => d}'"),
    // `a/x b/x` is how the head of a patch parts two names.
    (
        "two-names",
        "mkdir 'x b'; echo 1 > 'x b/x'",
        "echo 2 >> 'x b/x'; mkdir -p 'y b'; echo 3 > 'y b/y'; echo 4 > 'a b'",
    ),
    (
        "dev-null",
        "mkdir dev; echo 1 > dev/null",
        "echo 2 > dev/null; rm dev/null; echo 3 > dev/zero",
    ),
    (
        "composed",
        r#"echo 1 > "$(printf '\303\251')""#,
        r#"echo 2 >> "$(printf '\303\251')"; echo 3 > "$(printf 'e\314\201')""#,
    ),
    (
        "case",
        "echo 1 > README",
        "echo 2 > readme; echo 3 >> README",
    ),
    ("case-moved", "seq 30 > Name", "mv Name name"),
    (
        "right-to-left",
        r#"echo 1 > "$(printf 'a\342\200\256b')""#,
        r#"echo 2 > "$(printf 'a\342\200\256b')"; echo 3 > "$(printf '\360\237\246\200')""#,
    ),
    (
        "dots",
        "echo 1 > ...",
        "echo 2 >> ...; echo 3 > ..a; echo 4 > a..; mkdir ....; echo 5 > ..../x",
    ),
    (
        "windows",
        "echo 1 > CON",
        "echo 2 > CON; echo 3 > aux.txt; echo 4 > 'a:b'; echo 5 > 'x.'",
    ),
    (
        "all-quoted",
        r#"echo 1 > "$(printf '"\\\n\t\377"')""#,
        r#"mv "$(printf '"\\\n\t\377"')" "$(printf '\007\010\013\014\015 "')""#,
    ),
    // Modes.
    ("becomes-program", "echo 1 > a; chmod 644 a", "chmod 755 a"),
    ("program-no-more", "echo 1 > a; chmod 755 a", "chmod 644 a"),
    (
        "mode-and-content",
        "echo 1 > a; seq 9 > b; chmod 755 b",
        "echo 2 > a; chmod 755 a; echo x >> b; chmod 644 b",
    ),
    (
        "new-program",
        ":",
        "printf '#!/bin/sh\\n' > a; chmod 755 a; : > b; chmod 700 b",
    ),
    (
        "setuid",
        "echo 1 > a",
        "echo 2 > a; chmod 4755 a; echo 3 > b; chmod 2755 b",
    ),
    (
        "closed",
        "echo 1 > a",
        "echo 2 > a; chmod 600 a; echo 3 > b; chmod 400 b",
    ),
    (
        "program-moved",
        "seq 20 > a; chmod 755 a",
        "mv a b; chmod 644 b",
    ),
    // Links.
    (
        "link-new",
        "echo 1 > a",
        "ln -s a l; ln -s ./a m; mkdir d; ln -s ../a d/l",
    ),
    (
        "link-turned",
        "ln -s a l; echo 1 > a; echo 2 > b",
        "ln -sfn b l",
    ),
    ("link-removed", "ln -s a l; echo 1 > a", "rm l"),
    ("link-dangling", ":", "ln -s nowhere l; ln -s l m"),
    ("link-absolute", ":", "ln -s /etc/passwd l; ln -s / m"),
    ("link-out", ":", "ln -s ../../../../etc/passwd l"),
    ("link-itself", ":", "ln -s l l"),
    (
        "link-newline",
        ":",
        r#"ln -s "$(printf 'a\nb\n/x')" l; ln -s "$(printf 'a\n')x" m"#,
    ),
    (
        "link-not-utf-8",
        ":",
        r#"ln -s "$(printf '\377')" l; ln -s ' ' "$(printf '\376')""#,
    ),
    ("link-long", ":", r#"ln -s "$(printf '%02000d' 0)" l"#),
    (
        "link-moved",
        "ln -s target-of-some-length l",
        "mkdir d; mv l d/m",
    ),
    // What becomes something else.
    ("file-to-link", "echo 1 > a; echo 2 > b", "rm a; ln -s b a"),
    ("link-to-file", "echo 1 > b; ln -s b a", "rm a; echo 2 > a"),
    (
        "file-to-directory",
        "echo 1 > a",
        "rm a; mkdir a; echo 2 > a/a",
    ),
    (
        "directory-to-file",
        "mkdir -p a/b/c; echo 1 > a/x; echo 2 > a/b/c/y",
        "rm -r a; echo 3 > a",
    ),
    (
        "link-to-directory",
        "ln -s /tmp a",
        "rm a; mkdir a; echo 1 > a/x",
    ),
    (
        "directory-to-link",
        "mkdir a b; echo 1 > a/x; echo 2 > b/x",
        "rm -r a; ln -s b a",
    ),
    (
        "directory-to-program",
        "mkdir a; echo 1 > a/x",
        "rm -r a; echo 2 > a; chmod 755 a",
    ),
    (
        "link-to-program",
        "ln -s x a",
        "rm a; echo 2 > a; chmod 755 a",
    ),
    (
        "same-bytes-other-type",
        "printf b > a; echo 1 > b",
        "rm a; ln -s b a",
    ),
    // What moves.
    (
        "swapped",
        "seq 30 > a; seq 40 70 > b",
        "mv a c; mv b a; mv c b",
    ),
    (
        "chain",
        "seq 30 > a; seq 40 70 > b; seq 80 99 > c",
        "mv c d; mv b c; mv a b",
    ),
    (
        "moved-edited",
        "seq 200 > a",
        "mv a b; sed -i 's/^100$/x/' b; echo end >> b",
    ),
    (
        "moved-binary",
        "head -c 5000 /dev/zero | tr '\\0' '\\377' > a",
        "mkdir d; mv a d/b",
    ),
    (
        "directory-moved",
        "mkdir -p a/b; seq 9 > a/x; seq 19 > a/b/y; ln -s x a/l",
        "mv a c",
    ),
    ("into-itself", "seq 30 > x", "mv x y; mkdir x; mv y x/x"),
    (
        "out-of-itself",
        "mkdir x; seq 30 > x/x",
        "mv x/x y; rmdir x; mv y x",
    ),
    ("copied", "seq 50 > a", "cp a b; cp a c; rm a"),
    // Contents.
    ("empty-new", ":", ": > a; mkdir d; : > d/b; : > ' '"),
    ("empty-removed", ": > a; : > b", "rm a"),
    ("empty-filled", ": > a", "echo 1 > a"),
    (
        "emptied",
        "seq 9 > a; head -c 99 /dev/zero > b",
        ": > a; : > b",
    ),
    ("empty-moved", ": > a", "mv a b"),
    (
        "no-end",
        "printf 'a\\nb' > a; printf x > b",
        "printf 'a\\nc' > a; printf y > b; printf z > c",
    ),
    ("end-removed", "printf 'a\\nb\\n' > a", "printf 'a\\nb' > a"),
    ("end-added", "printf 'a\\nb' > a", "printf 'a\\nb\\n' > a"),
    (
        "no-end-appended",
        "printf 'a\\nb' > a",
        "printf 'a\\nb\\nc' > a",
    ),
    (
        "only-ends",
        "printf '\\n' > a",
        "printf '\\n\\n\\n' > a; printf '\\n' > b",
    ),
    (
        "crlf-to-lf",
        "printf 'a\\r\\nb\\r\\n' > a",
        "printf 'a\\nb\\n' > a",
    ),
    (
        "lf-to-crlf",
        "printf 'a\\nb\\n' > a",
        "printf 'a\\r\\nb\\r\\n' > a",
    ),
    (
        "mixed-ends",
        "printf 'a\\r\\nb\\nc\\r' > a",
        "printf 'a\\nb\\r\\nc\\rd\\r\\r\\n' > a",
    ),
    (
        "only-cr",
        "printf 'a\\rb\\r' > a",
        "printf 'a\\rc\\r' > a; printf '\\r' > b",
    ),
    (
        "nul",
        "printf 'a\\0b\\n' > a",
        "printf 'a\\0c\\n' > a; printf '\\0' > b",
    ),
    ("binary-to-text", "head -c 300 /dev/zero > a", "seq 300 > a"),
    ("text-to-binary", "seq 300 > a", "head -c 300 /dev/zero > a"),
    (
        "nul-far-away",
        ":",
        "{ seq 9000; printf '\\0'; seq 9; } > a",
    ),
    (
        "latin-1",
        "printf 'caf\\351\\n' > a",
        "printf 'caf\\351s\\n\\377\\n' > a",
    ),
    (
        "utf-16",
        "printf '\\377\\376a\\0\\n\\0' > a",
        "printf '\\377\\376b\\0\\n\\0' > a",
    ),
    (
        "mark",
        "seq 5 > a",
        "{ printf '\\357\\273\\277'; seq 5; } > b; mv b a",
    ),
    (
        "one-long-line",
        "head -c 300000 /dev/zero | tr '\\0' a > a",
        "head -c 300001 /dev/zero | tr '\\0' a > a",
    ),
    (
        "many-lines",
        "seq 20000 > a",
        "sed -i '1d; 10000s/$/x/; $d' a",
    ),
    (
        "large-binary",
        "head -c 1000000 /dev/zero > a",
        "seq 150000 | tr 1 '\\0' > a; head -c 1500000 /dev/zero > b",
    ),
    ("sparse", ":", "truncate -s 1M a; printf x >> a"),
    (
        "like-a-patch",
        "printf '%s\\n' 'diff --git a/x b/x' '--- a/x' '+++ b/x' '@@ -1 +1 @@' '-- ' > a",
        "printf '%s\\n' '--- a/x' '+++ /dev/null' '@@ -0,0 +1 @@' '+x' 'GIT binary patch' 'literal 3' '\\ No newline at end of file' '-- ' '2.40' > a",
    ),
    (
        "blanks",
        "printf 'a\\n b\\n' > a",
        "printf 'a \\n\\tb\\n \\n\\t\\n' > a",
    ),
    (
        "form-feed",
        "printf 'a\\n' > a",
        "printf 'a\\f\\v\\033\\b\\nb\\n' > a",
    ),
    (
        "same-lines",
        "yes x | head -n 200 > a",
        "{ yes x | head -n 90; echo y; yes x | head -n 110; } > b; mv b a",
    ),
    (
        "touched",
        "echo 1 > a; echo 2 > b",
        "touch a; cp b c; mv c b",
    ),
    ("one-inode", "echo 1 > a", "echo 2 > a; ln a b; ln a c"),
    // Paths.
    (
        "deep",
        ":",
        "p=.; for i in $(seq 60); do p=$p/d; done; mkdir -p $p; echo 1 > $p/x",
    ),
    (
        "long-path",
        ":",
        "p=.; for i in 1 2 3 4 5 6 7 8 9; do p=$p/$(printf '%0250d' $i); done; mkdir -p $p; echo 1 > $p/x",
    ),
    (
        "many-files",
        "for i in $(seq 300); do echo $i > f$i; done",
        "for i in $(seq 2 2 300); do echo x >> f$i; done; rm f*1; for i in $(seq 300); do echo n > n$i; done",
    ),
    (
        "all-removed",
        "mkdir -p a/b/c d; echo 1 > a/b/c/x; echo 2 > a/y; echo 3 > d/z",
        "rm -r a d",
    ),
    (
        "emptied-directory",
        "mkdir -p a/b; echo 1 > a/b/x; echo 2 > a/y",
        "rm a/b/x",
    ),
    (
        "neighbours",
        "mkdir a; echo 1 > a/x; echo 2 > a.x; echo 3 > a-x",
        "rm -r a; echo 4 > a; echo 5 >> a.x; rm a-x; mkdir a0; echo 6 > a0/x",
    ),
    // What would change bytes on their way, if somebody asked git.
    (
        "eol",
        "printf '* text eol=crlf\\n' > .gitattributes; printf 'a\\nb\\n' > a",
        "printf 'a\\nc\\n' > a; printf 'x\\r\\n' > b; printf 'y\\n' > c",
    ),
    (
        "auto",
        "printf '* text=auto\\n' > .gitattributes; printf 'a\\r\\n' > a",
        "printf 'a\\r\\nb\\r\\n' > a; printf 'c\\r\\nd\\n' > b",
    ),
    (
        "ident",
        "printf '* ident\\n' > .gitattributes; printf '$Id$\\n' > a",
        "printf '$Id$\\nb\\n' > a; printf '$Id: 1 $\\n' > b",
    ),
    (
        "filter",
        "printf '* filter=mark diff=mark merge=mark\\n' > .gitattributes; echo 1 > a",
        "echo 2 > a; echo 3 > b",
    ),
    (
        "encoding",
        "printf '* working-tree-encoding=UTF-16\\n' > .gitattributes; echo 1 > a",
        "echo 2 > a; printf '\\377' > b",
    ),
    (
        "attributes",
        "echo 1 > a",
        "printf '* text eol=crlf ident filter=mark\\n' > .gitattributes; printf '$Id$\\r\\n' > a; echo 2 > b",
    ),
    (
        "not-text",
        "printf '* -text -diff\\n' > .gitattributes; seq 9 > a",
        "seq 8 > a; printf 'a\\r\\n' > b",
    ),
    (
        "modules",
        "printf '[submodule \"x\"]\\n\\tpath = x\\n' > .gitmodules",
        "printf '[submodule \"y\"]\\n\\tpath = \"y\\r\"\\n' > .gitmodules",
    ),
];
