//! A forge in a thread: it keeps state and speaks the documented JSON of one kind, or does what
//! forges do on bad days.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::Kind;

pub const TOKEN: &str = "token-of-the-forge-4711";

/// What the next requests that would open something meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Day {
    Good,
    /// Every request is answered with this.
    Status(u16),
    /// Nobody ever answers.
    Silence,
    /// It is opened, and the answer is lost.
    AnswerLost,
    /// The list does not know yet what is open.
    Forgetful,
}

#[derive(Debug)]
pub struct State {
    pub day: Day,
    pub open: Vec<Value>,
    /// Method, path with query, and body of all that was asked.
    pub asked: Vec<(String, String, Value)>,
    /// Connections of which nobody says a word.
    silent: Vec<TcpStream>,
}

pub struct Double {
    pub port: u16,
    pub state: Arc<Mutex<State>>,
}

impl Double {
    pub fn start(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            day: Day::Good,
            open: Vec::new(),
            asked: Vec::new(),
            silent: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        // It ends with the test's process; connections are closed after each answer.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(kind, stream, &shared);
            }
        });
        Self { port, state }
    }

    pub fn set(&self, day: Day) {
        self.state.lock().unwrap().day = day;
    }

    pub fn open(&self) -> Vec<Value> {
        self.state.lock().unwrap().open.clone()
    }
}

fn serve(kind: Kind, stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let (mut length, mut allowed) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        let expected = match kind {
            Kind::GitHub => ("authorization", format!("Bearer {TOKEN}")),
            Kind::GitLab => ("private-token", TOKEN.to_owned()),
            Kind::Gitea => ("authorization", format!("token {TOKEN}")),
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            name if name == expected.0 => allowed = value == expected.1,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let mut state = state.lock().unwrap();
    state
        .asked
        .push((method.clone(), path.clone(), body.clone()));
    let (status, answer) = match state.day {
        Day::Silence => {
            state.silent.push(stream);
            return;
        }
        Day::Status(status) => (status, json!({"message": "bad day\u{1b}[2J", "errors": []})),
        _ if !allowed => (401, json!({"message": "Bad credentials"})),
        Day::AnswerLost if method == "POST" => {
            open(kind, &mut state, &body);
            return;
        }
        Day::Forgetful if method == "GET" => {
            state.day = Day::Good;
            (200, json!([]))
        }
        _ => answer(kind, &mut state, &method, &path, &body),
    };
    drop(state);
    let text = answer.to_string();
    let head = format!(
        "HTTP/1.1 {status} Word\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let mut stream = stream;
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(text.as_bytes());
}

fn answer(kind: Kind, state: &mut State, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let requests = match kind {
        Kind::GitHub | Kind::Gitea => "/api/repos/owner/app/pulls",
        Kind::GitLab => "/api/projects/owner%2Fapp/merge_requests",
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if path != requests {
        return (404, json!({"message": "Not Found"}));
    }
    let branch = |item: &Value| match kind {
        Kind::GitLab => item["source_branch"].clone(),
        Kind::GitHub | Kind::Gitea => item["head"]["ref"].clone(),
    };
    if method == "GET" {
        // As documented: GitHub and GitLab look for a branch themselves, Gitea lists all.
        let wanted = query.split('&').find_map(|part| {
            let part = part.strip_prefix("head=owner:");
            part.or_else(|| {
                query
                    .split('&')
                    .find_map(|part| part.strip_prefix("source_branch="))
            })
        });
        let fits = |item: &&Value| {
            kind == Kind::Gitea || wanted.is_none_or(|wanted| branch(item) == wanted)
        };
        let list: Vec<&Value> = state.open.iter().filter(fits).collect();
        return (200, json!(list));
    }
    let asked = match kind {
        Kind::GitLab => &body["source_branch"],
        Kind::GitHub | Kind::Gitea => &body["head"],
    };
    if state.open.iter().any(|item| branch(item) == *asked) {
        return match kind {
            Kind::GitHub => (
                422,
                json!({"message": "Validation Failed", "errors": [
                    {"message": "A pull request already exists for owner:x."}]}),
            ),
            Kind::GitLab => (
                409,
                json!({"message": ["Another open merge request already exists for this source branch: !1"]}),
            ),
            Kind::Gitea => (
                409,
                json!({"message": "pull request already exists for these targets"}),
            ),
        };
    }
    (201, open(kind, state, body))
}

fn open(kind: Kind, state: &mut State, body: &Value) -> Value {
    let number = state.open.len() + 1;
    let page = format!("https://git.example/owner/app/{number}");
    let item = match kind {
        Kind::GitLab => json!({
            "iid": number, "web_url": page, "state": "opened", "title": body["title"],
            "description": body["description"], "source_branch": body["source_branch"],
            "target_branch": body["target_branch"], "source_project_id": 7,
            "target_project_id": 7,
        }),
        Kind::GitHub | Kind::Gitea => json!({
            "number": number, "html_url": page, "state": "open", "title": body["title"],
            "body": body["body"], "draft": body["draft"],
            "head": {"ref": body["head"], "repo": {"full_name": "owner/app"}},
            "base": {"ref": body["base"]},
        }),
    };
    state.open.push(item.clone());
    item
}
