//! Somebody sets the clock of the database, by which nodes judge each other's leases: they wait until all leases are of the new time, and
//! nobody loses work.

use taskwire_testkit::Server;
use tokio::task::{block_in_place, yield_now};

use super::{Load, gone, started, three_at, within_a_minute};
use crate::kit::with_timeout;

/// In seconds.
const HOUR: i64 = 3_600;
/// How often the clock is set. A node that judged the others at once would mostly find a lease that is not renewed yet, not each time.
const TIMES: u64 = 2;
/// Chunks of a task that waits for 20 ms after each: together they take longer than a lease.
const CHUNKS_OF_A_LEASE: u64 = 300;
/// How many nodes have a lease by the clock as it is now.
const RENEWED: &str = "WITH moment AS (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now)
    SELECT count(*) FROM taskwire.node, moment WHERE expires BETWEEN now AND now + 6000";

/// Waits until three nodes have renewed their leases.
async fn all_have_leases(database: &Server) {
    let renewed = async {
        while block_in_place(|| database.psql(RENEWED)) != "3" {
            yield_now().await;
        }
    };
    with_timeout("new leases", renewed).await;
}

/// The clock is set again and again, `by` so much more each time, while three nodes work.
async fn goes_on_when_the_clock_is_set(by: i64) {
    within_a_minute(async {
        let database = started(&[]);
        block_in_place(|| database.own_clock());
        let mut load = Load::begin(three_at(&database.url())).await;
        for (n, ahead) in (1..=TIMES).zip((1..).map(|n| n * by)) {
            // Who could reach the database for so long may say that another node is dead.
            load.written_when(|written| written.into_iter().all(|chunks| chunks >= n * CHUNKS_OF_A_LEASE)).await;
            block_in_place(|| database.set_clock(ahead));
            all_have_leases(&database).await;
            load.goes_on().await;
        }
        assert_eq!(gone(&database), "0", "nobody was declared dead");
        load.ends(&database).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_clock_of_the_database_that_is_set_forward_takes_nothing_from_anybody() {
    goes_on_when_the_clock_is_set(HOUR).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_clock_of_the_database_that_is_set_back_takes_nothing_from_anybody() {
    goes_on_when_the_clock_is_set(-HOUR).await;
}
