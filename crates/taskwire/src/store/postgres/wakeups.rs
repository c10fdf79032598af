//! Wake-ups: what a node changed, told to the others by `NOTIFY`, after the commit and on another connection.
//!
//! A transaction that notifies takes a lock that all such transactions of the server share until it has committed: writes must not wait for
//! that. So wake-ups are gathered for some milliseconds, and are sent together.
//!
//! Whoever may connect to the database can hear them, and the id of a session is as good as a password. So a session is named by a hash of
//! its id, and a node that has looked at the session knows which one that is; no other node has anybody to wake. What is not understood is
//! left out: each node looks at everything from time to time.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    future::poll_fn,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sha2::{Digest, Sha256};
use taskwire_core::{SessionId, TaskId};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tokio_postgres::{AsyncMessage, types::Type};

use super::{
    connection::{Database, EndOnDrop, Sql},
    error::{away, describe},
};
use crate::{
    clock::random_bytes,
    store::{Changes, Error},
};

/// How long wake-ups are gathered.
const GATHER: Duration = Duration::from_millis(5);
/// How soon it is tried again after a connection was lost.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How long a notification to oneself may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a connection that does not hear anything is tried again.
const TEST_INTERVAL: Duration = Duration::from_secs(60);
/// How often a quiet connection is asked whether it is still there.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Changes that wait to be sent; more become "anything".
const PENDING_MAX: usize = 4_096;
/// Wake-ups that wait to be noticed; more become "anything".
const HEARD_MAX: usize = 256;
/// Sessions that are known by their hashes.
const SESSIONS_MAX: usize = 65_536;
/// Bytes of one notification: PostgreSQL takes less than 8,000.
const PAYLOAD_BYTES: usize = 7_900;
/// Notifications that are sent together; more become "anything".
const PAYLOADS_MAX: usize = 8;
/// A letter and the 32 characters of a task's id, or of the hash of a session's.
const ITEM_BYTES: usize = 33;
/// Hexadecimal digits that say who sends.
const SENDER_BYTES: usize = 16;
const ANYTHING: &str = "*";

const NOTIFY: Sql = Sql { text: "SELECT pg_notify($1, payload) FROM UNNEST($2) AS payload", types: &[Type::TEXT, Type::TEXT_ARRAY] };

type SessionHash = [u8; 16];

fn hash(id: &str) -> SessionHash {
    let mut hash = SessionHash::default();
    hash.copy_from_slice(&Sha256::digest(id.as_bytes())[..16]);
    hash
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change is left half done by a panic, so a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is to be sent.
#[derive(Default)]
struct Pending {
    tasks: BTreeSet<TaskId>,
    sessions: BTreeSet<SessionHash>,
    anything: bool,
}

/// What this node tells others, and hears from them.
pub(super) struct Wakeups {
    /// Who sends: a node does not hear itself.
    sender: String,
    channel: String,
    pending: Mutex<Pending>,
    added: Notify,
    heard: Mutex<VecDeque<Changes>>,
    arrived: Notify,
    sessions: Mutex<HashMap<SessionHash, SessionId>>,
    /// The last test that was heard.
    tested: watch::Sender<u64>,
    /// Whether the first test is over.
    is_ready: watch::Sender<bool>,
    pub(super) arrive: AtomicBool,
}

impl Wakeups {
    pub(super) fn new(schema: &str) -> Self {
        let mut id = [0; SENDER_BYTES / 2];
        random_bytes(&mut id);
        Self {
            sender: format!("{:0width$x}", u64::from_be_bytes(id), width = SENDER_BYTES),
            channel: format!("{schema}_changes"),
            pending: Mutex::default(),
            added: Notify::new(),
            heard: Mutex::default(),
            arrived: Notify::new(),
            sessions: Mutex::default(),
            tested: watch::Sender::new(0),
            is_ready: watch::Sender::new(false),
            arrive: AtomicBool::new(false),
        }
    }

    /// A session was looked at: somebody here may wait for it.
    pub(super) fn remember(&self, id: &SessionId) {
        let hash = hash(id.as_str());
        let mut sessions = lock(&self.sessions);
        if !sessions.contains_key(&hash) {
            if sessions.len() >= SESSIONS_MAX {
                // Those that are still in use are looked at again.
                sessions.clear();
            }
            sessions.insert(hash, id.clone());
        }
    }

    /// See [`Cluster::announce`](crate::store::Cluster::announce).
    pub(super) fn announce(&self, changes: Changes) {
        let mut pending = lock(&self.pending);
        match changes {
            _ if pending.anything => {}
            Changes::Of(tasks, sessions) => {
                pending.tasks.extend(tasks);
                pending.sessions.extend(sessions.iter().map(|id| hash(id.as_str())));
                pending.anything = pending.tasks.len() + pending.sessions.len() > PENDING_MAX;
            }
            Changes::Unknown => pending.anything = true,
        }
        drop(pending);
        self.added.notify_one();
    }

    /// See [`Cluster::next_changes`](crate::store::Cluster::next_changes).
    pub(super) async fn next(&self) -> Changes {
        loop {
            let next = lock(&self.heard).pop_front();
            if let Some(changes) = next {
                return changes;
            }
            self.arrived.notified().await;
        }
    }

    fn push(&self, changes: Changes) {
        let mut heard = lock(&self.heard);
        if heard.len() >= HEARD_MAX {
            heard.clear();
            heard.push_back(Changes::Unknown);
        } else {
            heard.push_back(changes);
        }
        drop(heard);
        self.arrived.notify_one();
    }

    /// Waits until it is known whether wake-ups arrive here.
    pub(super) async fn ready(&self) {
        let _ = self.is_ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Notifications with all that waits.
    fn payloads(&self) -> Vec<String> {
        let Pending { tasks, sessions, anything } = mem::take(&mut *lock(&self.pending));
        let tasks = tasks.iter().map(|id| format!("t{id}"));
        let sessions = sessions.iter().map(|hash| format!("s{:032x}", u128::from_be_bytes(*hash)));
        let items: Vec<String> = tasks.chain(sessions).collect();
        let room = (PAYLOAD_BYTES - SENDER_BYTES) / ITEM_BYTES;
        if anything || items.len() > room * PAYLOADS_MAX {
            return vec![format!("{}{ANYTHING}", self.sender)];
        }
        items.chunks(room).map(|items| format!("{}{}", self.sender, items.concat())).collect()
    }

    /// Takes a notification.
    fn hear(&self, payload: &str) {
        let Some((sender, body)) = payload.split_at_checked(SENDER_BYTES) else { return };
        if let Some(test) = body.strip_prefix('?') {
            if sender == self.sender {
                let _ = test.parse().map(|test| self.tested.send_replace(test));
            }
            return;
        }
        if sender == self.sender {
            return;
        }
        if body == ANYTHING {
            return self.push(Changes::Unknown);
        }
        let (mut tasks, mut sessions) = (Vec::new(), Vec::new());
        for item in body.as_bytes().chunks(ITEM_BYTES) {
            match item.split_first().map(|(kind, id)| (kind, str::from_utf8(id).unwrap_or_default())) {
                Some((b't', id)) => tasks.extend(id.parse::<TaskId>()),
                Some((b's', hash)) => {
                    let hash = u128::from_str_radix(hash, 16).unwrap_or_default().to_be_bytes();
                    sessions.extend(lock(&self.sessions).get(&hash).cloned());
                }
                _ => {}
            }
        }
        if !tasks.is_empty() || !sessions.is_empty() {
            self.push(Changes::Of(tasks, sessions));
        }
    }

    async fn notify(&self, database: &Database, payloads: &[String]) -> Result<(), Error> {
        database.run(&NOTIFY, &[&self.channel, &payloads]).await.map(drop)
    }
}

/// Sends what is announced.
pub(super) async fn send(database: Arc<Database>, wakeups: Arc<Wakeups>) {
    loop {
        wakeups.added.notified().await;
        sleep(GATHER).await;
        let payloads = wakeups.payloads();
        if payloads.is_empty() {
            continue;
        }
        if let Err(error) = wakeups.notify(&database, &payloads).await {
            tracing::debug!(%error, "other nodes could not be woken");
            sleep(RETRY_DELAY).await;
            wakeups.announce(Changes::Unknown);
        }
    }
}

/// Hears what others announce.
pub(super) async fn listen(database: Arc<Database>, wakeups: Arc<Wakeups>) {
    let (mut was_warned, mut is_first) = (false, true);
    loop {
        let error = match hear(&database, &wakeups, mem::take(&mut is_first), &mut was_warned).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if wakeups.arrive.swap(false, Ordering::Relaxed) {
            tracing::warn!(%error, "the connection that hears other nodes was lost: looking for their changes until it is back");
        } else {
            tracing::debug!(%error, "other nodes cannot be heard");
        }
        wakeups.is_ready.send_replace(true);
        sleep(RETRY_DELAY).await;
    }
}

/// Hears until the connection ends.
async fn hear(
    database: &Database,
    wakeups: &Arc<Wakeups>,
    is_first: bool,
    was_warned: &mut bool,
) -> Result<std::convert::Infallible, Error> {
    let endpoint = database.sessions_at();
    let connected = timeout(endpoint.timeout, endpoint.config.connect(endpoint.tls.clone())).await;
    let (client, mut connection) = connected.map_err(|_| away("it took too long to connect"))?.map_err(|error| away(describe(&error)))?;
    let hearing = wakeups.clone();
    let mut connection = EndOnDrop::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                hearing.hear(notification.payload());
            }
        }
    });
    let command = format!("LISTEN \"{}\"", wakeups.channel);
    let listening = timeout(endpoint.timeout, client.batch_execute(&command)).await;
    listening.map_err(|_| away("it took too long to listen"))?.map_err(|error| away(describe(&error)))?;
    if !is_first {
        // Something may have changed meanwhile.
        wakeups.push(Changes::Unknown);
    }
    let arrives = test(database, wakeups).await?;
    wakeups.arrive.store(arrives, Ordering::Relaxed);
    wakeups.is_ready.send_replace(true);
    if arrives {
        *was_warned = false;
    } else {
        if !mem::replace(was_warned, true) {
            tracing::warn!(
                "notifications of the database do not arrive, most likely because of a pooler in transaction mode: changes of other nodes \
                 are noticed late. Set `listen_url` to an address of the database without the pooler"
            );
        }
        sleep(TEST_INTERVAL).await;
        return Err(away("notifications do not arrive"));
    }
    loop {
        tokio::select! {
            () = connection.ended() => return Err(away("the connection has ended")),
            () = sleep(CHECK_INTERVAL) => {}
        }
        let check = timeout(CHECK_INTERVAL, client.check_connection()).await;
        check.map_err(|_| away("the connection does not answer"))?.map_err(|error| away(describe(&error)))?;
    }
}

/// Whether a notification to oneself arrives.
async fn test(database: &Database, wakeups: &Wakeups) -> Result<bool, Error> {
    let mut number = [0; 8];
    random_bytes(&mut number);
    let number = u64::from_be_bytes(number);
    wakeups.notify(database, &[format!("{}?{number}", wakeups.sender)]).await?;
    let mut tested = wakeups.tested.subscribe();
    let arrived = timeout(TEST_TIMEOUT, tested.wait_for(|heard| *heard == number)).await;
    Ok(matches!(arrived, Ok(Ok(_))))
}

#[cfg(test)]
mod tests {
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    fn id(name: u16) -> TaskId {
        let mut random = [0; ID_RANDOM_BYTES];
        random[..2].copy_from_slice(&name.to_be_bytes());
        TaskId::new(Timestamp::from_millis(1), random)
    }

    fn heard(from: &Wakeups, by: &Wakeups) -> Vec<Changes> {
        let payloads = from.payloads();
        assert!(payloads.len() <= PAYLOADS_MAX && payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES));
        payloads.iter().for_each(|payload| by.hear(payload));
        lock(&by.heard).drain(..).collect()
    }

    #[test]
    fn another_node_hears_which_tasks_and_which_sessions_that_it_knows() {
        let (one, other) = (Wakeups::new("s"), Wakeups::new("s"));
        let (known, unknown) = (SessionId::new("known"), SessionId::new("unknown"));
        other.remember(&known);
        one.announce(Changes::Of(vec![id(1)], vec![known.clone(), unknown]));
        one.announce(Changes::Of(vec![id(2), id(1)], vec![]));
        assert_eq!(heard(&one, &other), [Changes::Of(vec![id(1), id(2)], vec![known])]);
        one.announce(Changes::Of(vec![id(1)], vec![]));
        assert_eq!(heard(&one, &one), [], "nobody hears himself");
        one.announce(Changes::Unknown);
        assert_eq!(heard(&one, &other), [Changes::Unknown]);
        ["", "short", &"x".repeat(100), &"é".repeat(50)].iter().for_each(|noise| other.hear(noise));
        assert_eq!(lock(&other.heard).len(), 0, "noise is nothing");
    }

    #[test]
    fn many_changes_are_sent_in_parts_and_too_many_as_anything() {
        let (one, other) = (Wakeups::new("s"), Wakeups::new("s"));
        one.announce(Changes::Of((0..1_000).map(id).collect(), vec![]));
        let parts = heard(&one, &other);
        let tasks = parts.iter().flat_map(|part| if let Changes::Of(tasks, _) = part { tasks.clone() } else { vec![] });
        assert!(tasks.eq((0..1_000).map(id)));
        for count in [3_000, 5_000] {
            one.announce(Changes::Of((0..count).map(id).collect(), vec![]));
            assert_eq!(heard(&one, &other), [Changes::Unknown]);
        }
    }
}
