//! Sessions: the directory and the variables that one command leaves are those of the next.
//!
//! They are kept inside, in the sandbox's home, which lasts with its workspace: a replaced
//! execution goes on where the lost one was, and a rollback takes them back as well. The host never
//! reads them.

use ringfence_model::ByteText;

use crate::error::Error;

/// Restores, runs, saves. `$1` is the session's name, `$2` the command.
const COMMAND: &str = r#"
__d="$HOME/.ringfence/sessions/$1"; __c="$2"; shift 2
mkdir -p "$__d" || exit 125
if [ -f "$__d/env" ]; then . "$__d/env"; fi
cd "$(cat "$__d/cwd" 2>/dev/null)" 2>/dev/null || cd /workspace
trap '__s=$?; trap - EXIT; pwd > "$__d/cwd"; export -p > "$__d/env"; exit $__s' EXIT
eval "$__c"
"#;

/// An interactive shell that saves at every prompt. `$1` is the session's name.
const SHELL: &str = r#"
__d="$HOME/.ringfence/sessions/$1"
mkdir -p "$__d" || exit 125
cat > "$__d/rc" <<'END'
[ -f /etc/bash.bashrc ] && . /etc/bash.bashrc
[ -f "$HOME/.bashrc" ] && . "$HOME/.bashrc"
[ -f "$__d/env" ] && . "$__d/env"
cd "$(cat "$__d/cwd" 2>/dev/null)" 2>/dev/null || cd /workspace
PS1='(ringfence) \w\$ '
HISTFILE="$__d/history"
__save() { pwd > "$__d/cwd"; __e="$__d/env"; ( set -o posix; unset __d; export -p ) > "$__e"; history -a 2>/dev/null; }
PROMPT_COMMAND=__save
trap __save EXIT
END
export __d
if command -v bash >/dev/null; then exec bash --rcfile "$__d/rc" -i; fi
if [ -f "$__d/env" ]; then . "$__d/env"; fi
cd "$(cat "$__d/cwd" 2>/dev/null)" 2>/dev/null || cd /workspace
exec sh -i
"#;

/// The command of a session. One word is a line of shell; several are a program and its arguments,
/// which may be a builtin (`cd src`).
pub(super) fn wrap(session: &str, argv: &[ByteText]) -> Result<Vec<ByteText>, Error> {
    check(session)?;
    let command = match argv {
        [line] => line.clone(),
        words => {
            let quoted: Vec<Vec<u8>> = words.iter().map(|word| quote(word.as_bytes())).collect();
            ByteText(quoted.join(&b' '))
        }
    };
    Ok(vec![
        "/bin/sh".into(),
        "-c".into(),
        COMMAND.into(),
        "sh".into(),
        session.into(),
        command,
    ])
}

/// An interactive shell of a session.
pub fn shell(session: &str) -> Result<Vec<ByteText>, Error> {
    check(session)?;
    Ok(vec![
        "/bin/sh".into(),
        "-c".into(),
        SHELL.into(),
        "sh".into(),
        session.into(),
    ])
}

/// A session is a directory inside.
pub(super) fn check(session: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !session.is_empty() && session.len() <= 64 && session.chars().all(plain) {
        Ok(())
    } else {
        Err(Error::BadSession(session.chars().take(64).collect()))
    }
}

/// One word for a shell, whatever is in it.
fn quote(word: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for &byte in word {
        if byte == b'\'' {
            out.extend_from_slice(b"'\\''");
        } else {
            out.push(byte);
        }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        let argv: Vec<ByteText> = vec!["echo".into(), "it's $HOME;`x`\n".into(), "".into()];
        let wrapped = wrap("s", &argv).unwrap();
        assert_eq!(wrapped[5].as_bytes(), b"'echo' 'it'\\''s $HOME;`x`\n' ''");
        for bad in ["", "a/b", "..", "a b", "é"] {
            assert!(wrap(bad, &argv).is_err(), "{bad}");
        }
    }
}
