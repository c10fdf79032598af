//! What a dialog asks, and how it handles what is typed.

use serde_json::json;
use taskwire_core::Payload;

use super::*;
use crate::term::paint::Paint;

fn dialog(kind: QuestionKind) -> QuestionDialog {
    let request = match &kind {
        QuestionKind::Form { schema } => json!({"method": "elicitation/create", "params": {"requestedSchema": schema}}),
        _ => json!({}),
    };
    let input = Question { key: "k".to_owned(), kind, message: "Who are\nyou?".to_owned(), request: Payload::from(request) };
    QuestionDialog::new(&input, Paint::plain()).expect("it can be asked")
}

fn form(schema: Value) -> QuestionDialog {
    dialog(QuestionKind::Form { schema })
}

fn url_question(url: &str) -> QuestionDialog {
    dialog(QuestionKind::Url { url: url.to_owned() })
}

/// Shows the prompt and what is typed at it, until there is an answer.
fn talk(asking: &mut QuestionDialog, lines: &[&str]) -> (String, Option<Step>) {
    let mut screen = asking.opening("Who are\nyou?");
    for line in lines {
        screen.push_str(&format!("{}{line}\n", asking.prompt()));
        match asking.enter_line(&format!("{line}\n")) {
            Step::Ask(text) => screen.push_str(&text),
            step => return (screen, Some(step)),
        }
    }
    (screen, None)
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "age": {"type": "integer", "title": "Age", "minimum": 0},
            "colour": {"type": "string", "title": "Colour", "enum": ["red", "green"], "default": "green"},
            "name": {"type": "string", "title": "Name", "description": "What should I call you?"},
        },
        "required": ["name"],
    })
}

#[test]
fn a_form_is_asked_field_by_field_and_shown_before_it_is_sent() {
    let (screen, step) = talk(&mut form(person()), &["old", "36", "", "Ada", ""]);
    let content = json!({"age": 36, "colour": "green", "name": "Ada"});
    assert_eq!(step, Some(Step::Answer(Answer::accept(content))), "{screen}");
    assert!(screen.starts_with("? Who are\n  you?\n  Age (optional): old\n  ! "), "{screen}");
    for shown in [
        "    1) red\n    2) green\n  Colour [green]: \n",
        "  What should I call you?\n  Name: Ada\n",
        "  Age: 36\n  Colour: green\n  Name: Ada\nSend? [Y/n/d(ecline)/c(ancel)] \n",
    ] {
        assert!(screen.contains(shown), "`{shown}` in: {screen}");
    }
}

#[test]
fn what_was_typed_can_be_typed_again_and_enter_keeps_it() {
    let (screen, step) = talk(&mut form(person()), &["36", "1", "Ada", "n", "", "", "Eve", "y"]);
    assert_eq!(step, Some(Step::Answer(Answer::accept(json!({"age": 36, "colour": "red", "name": "Eve"})))), "{screen}");
    assert!(screen.contains("  Age [36]: ") && screen.contains("  Colour [red]: ") && screen.contains("  Name [Ada]: "), "{screen}");
}

#[test]
fn a_form_can_be_declined_and_left() {
    let two = json!({"type": "object", "properties": {"age": {"type": "integer"}, "name": {"type": "string"}}});
    for (word, answer) in [("d", Answer::decline()), ("cancel", Answer::cancel())] {
        let (screen, step) = talk(&mut form(two.clone()), &["", "Ada", "what?", word]);
        assert_eq!(step, Some(Step::Answer(answer)), "{screen}");
        assert!(screen.contains("  ! y, n, d or c\nSend?"), "{screen}");
    }
}

#[test]
fn a_question_with_one_field_is_asked_once() {
    let one = |field: Value| json!({"type": "object", "properties": {"it": field}, "required": ["it"]});
    let flag = json!({"type": "boolean", "title": "Sure"});
    for (field, line, answer) in [
        (flag.clone(), "y", Answer::accept(json!({"it": true}))),
        (flag.clone(), "n", Answer::accept(json!({"it": false}))),
        (flag.clone(), "decline", Answer::decline()),
        (flag.clone(), "c", Answer::cancel()),
        (json!({"type": "string"}), "d", Answer::accept(json!({"it": "d"}))),
        (json!({"type": "string", "enum": ["eu", "us"]}), "2", Answer::accept(json!({"it": "us"}))),
    ] {
        let (screen, step) = talk(&mut form(one(field)), &[line]);
        assert_eq!(step, Some(Step::Answer(answer)), "{screen}");
        assert!(!screen.contains("Send?"), "{screen}");
    }
    let (screen, step) = talk(&mut form(one(flag)), &["perhaps", "", "yes"]);
    assert_eq!(step, Some(Step::Answer(Answer::accept(json!({"it": true})))), "{screen}");
    assert_eq!(screen.matches("  ! ").count(), 2, "what does not fit is asked again: {screen}");
}

#[test]
fn what_the_server_refuses_of_one_field_is_asked_again() {
    let mut asking = form(json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}));
    assert!(matches!(talk(&mut asking, &["Ada"]).1, Some(Step::Answer(_))));
    assert_eq!(asking.refused("name: taken"), "  ! name: taken\n");
    assert_eq!(asking.prompt(), "  name [Ada]: ");
}

#[test]
fn what_the_server_refuses_is_asked_again() {
    let mut asking = form(person());
    talk(&mut asking, &["36", "1", "Ada"]);
    let text = asking.refused("name: taken");
    assert_eq!(text, "  ! name: taken\n");
    assert_eq!(asking.prompt(), "  Age [36]: ");
}

#[test]
fn a_form_without_fields_is_only_sent() {
    for (word, answer) in [("", Answer::accept(json!({}))), ("y", Answer::accept(json!({}))), ("n", Answer::decline())] {
        let (_, step) = talk(&mut form(json!({"type": "object", "properties": {}})), &[word]);
        assert_eq!(step, Some(Step::Answer(answer)), "{word}");
    }
}

#[test]
fn a_page_is_opened_only_after_a_yes() {
    let url = "https://example.com/sign?x=1";
    let (screen, step) = talk(&mut url_question(url), &["y"]);
    assert_eq!(step, Some(Step::Open(url.to_owned(), Answer::accept_url())));
    assert!(screen.contains(&format!("  https://example.com/sign?x=1\n{OPEN}y\n")), "{screen}");
    for (lines, answer) in [
        (&["accept"] as &[&str], Answer::accept_url()),
        (&[""], Answer::decline()),
        (&["no"], Answer::decline()),
        (&["c"], Answer::cancel()),
        (&["anything", "decline"], Answer::decline()),
    ] {
        let (screen, step) = talk(&mut url_question(url), lines);
        assert_eq!((step, screen.matches(OPEN).count()), (Some(Step::Answer(answer)), lines.len()), "{lines:?}: asked once");
    }
}

#[test]
fn what_is_no_page_is_never_opened() {
    let (screen, step) = talk(&mut url_question("file:///etc/passwd"), &["y"]);
    assert!(screen.contains("not opened from here") && screen.contains(ACCEPT) && !screen.contains(OPEN), "{screen}");
    assert_eq!(step, Some(Step::Answer(Answer::accept_url())));
}

#[test]
fn the_host_of_a_page_stands_out() {
    for (url, host) in [
        ("https://example.com/a@b", "example.com"),
        ("https://bank.com@evil.org/x", "evil.org"),
        ("https://bank.com\\@evil.org", "bank.com"),
        ("https://h:8443?x", "h:8443"),
        ("mailto", "mailto"),
    ] {
        assert_eq!(parts(url).1, host, "{url}");
    }
    assert!(describe_url("https://bank.com@evil.org/x", Paint::plain()).contains("it leads to evil.org"));
    assert!(describe_url("https://xn--bnk-0na.com/", Paint::plain()).contains("may look like others"));
    assert!(describe_url("https://a\x1b[2J.com/", Paint::plain()).contains("^[[2J"));
}

#[test]
fn nobody_is_asked_for_the_message_of_a_model() {
    let kind = QuestionKind::Sampling { params: json!({}) };
    let input = Question { key: "k".to_owned(), kind, message: String::new(), request: Payload::from(json!({})) };
    assert!(QuestionDialog::new(&input, Paint::plain()).is_none());
}
