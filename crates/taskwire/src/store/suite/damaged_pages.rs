//! Damaged pages of an embedded store: whom they concern, and what is said where that is everybody.

use rusqlite::Connection;

use super::*;
use crate::store::ErrorKind;

/// Of a log that has several: the page with the first task.
const FIRST_LEAF: &str = "SELECT pageno FROM dbstat WHERE name = 'log' AND pagetype = 'leaf' ORDER BY path LIMIT 1";
const LEAVES: &str = "SELECT count(*) FROM dbstat WHERE name = 'log' AND pagetype = 'leaf'";

/// Begins a task of whose kind few fit on a page.
fn large() -> Command {
    Command::Create(NewTask::new(Arc::new(spec()), json!({ "x": "x".repeat(800) }).into(), Epoch(1)))
}

fn number(database: &Connection, sql: &str) -> usize {
    database.query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// Overwrites the page that a query finds, while nobody has the store open.
fn damage(lab: &mut Lab<SqliteStore>, page: &str) {
    lab.store = None;
    let path = lab.dir.0.join("tasks.db");
    let database = Connection::open(&path).expect("the database opens");
    let (page, bytes) = (number(&database, page), number(&database, "PRAGMA page_size"));
    drop(database);
    let mut file = std::fs::read(&path).expect("readable");
    file[(page - 1) * bytes..page * bytes].fill(0x55);
    std::fs::write(&path, file).expect("writable");
    lab.store = Some(SqliteStore::open(&lab.dir.0).expect("the store opens again"));
}

#[test]
fn a_damaged_page_is_in_the_way_of_the_task_that_writes_there_and_of_no_other() {
    let mut lab = Lab::new(open_sqlite);
    let mut drivers: Vec<Driver> = (1..=60).map(Driver::new).collect();
    for driver in &mut drivers {
        lab.run(driver, &large());
    }
    let leaves = number(&Connection::open(lab.dir.0.join("tasks.db")).expect("the database opens"), LEAVES);
    assert!(leaves > 6, "the last task is far from the first: {leaves}");
    damage(&mut lab, FIRST_LEAF);
    let (first, last) = (drivers.remove(0).run(&ask("a")), drivers[58].run(&ask("a")));
    let writes = [first, last].map(|write| write.expect("it may ask"));
    let id = writes[0].task.id.to_string();
    for _ in 0..2 {
        for writes in [&writes[..], &writes[..1]] {
            let refused = lab.store().try_commit_now(writes, &[]).expect_err("a page is damaged");
            assert!(refused.kind() == ErrorKind::Corrupt && refused.to_string().contains(&id), "{refused}");
        }
    }
    lab.store().commit_now(&writes[1..], &[]).expect("nothing is in its way");
    lab.check(&drivers[58]);
    let mut new = Driver::new(61);
    lab.run(&mut new, &large());
    lab.kill();
    lab.check(&drivers[58]);
    lab.check(&new);
}

#[test]
fn a_damaged_page_that_all_tasks_need_ends_it_and_it_is_said_what_to_do() {
    for table in ["log", "task", "task_open", "chunk"] {
        let mut lab = Lab::new(open_sqlite);
        lab.run(&mut Driver::new(1), &make(spec(), vec![Blocks::of(&[text("out")])]));
        damage(&mut lab, &format!("SELECT rootpage FROM sqlite_master WHERE name = '{table}'"));
        let write = Driver::new(2).run(&make(spec(), vec![Blocks::of(&[text("put")])])).expect("a new task");
        let failed = lab.store().try_commit_now(slice::from_ref(&write), &[]).expect_err("a page is damaged");
        assert!(failed.kind() == ErrorKind::Fatal && failed.is_damage(), "{table}: {failed}");
        assert!(failed.to_string().contains("put a copy of the whole data directory in its place"), "{table}: {failed}");
    }
}
