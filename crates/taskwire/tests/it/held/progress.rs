//! The progress that a caller gets while its call is held.

use taskwire::tool::Progress;

use super::*;

#[tokio::test]
async fn who_wants_progress_hears_that_the_work_goes_on() {
    for way in WAYS {
        let (tool, mut runs) = played("plays");
        let fixture = HoldFixture::new([tool]).await;
        let mut call = Caller::new(way, &fixture).await.call_with_progress("plays", json!({})).await;
        let mut run = run_of(&mut runs).await;
        run.progress(0.5, None).await;
        assert_eq!(call.progress().await, (0.5, "0.5 done".to_owned()), "{way:?}");
        let mut last = 0.5;
        for _ in 0..2 {
            fixture.pass(BEAT - MS).await;
            call.is_quiet().await;
            fixture.pass(MS).await;
            let (done, words) = call.progress().await;
            assert!(done > last && done < 0.501, "{way:?}: {done} after {last}");
            assert!(words.starts_with("running for ") && words.ends_with(" s"), "{way:?}: {words}");
            last = done;
        }
        run.progress(1.0, Some("one")).await;
        assert_eq!(call.progress().await, (1.0, "one".to_owned()), "{way:?}: a sign of life is not in the way of that");
        fixture.pass(BEAT - MS).await;
        call.is_quiet().await;
        fixture.pass(MS).await;
        let (done, words) = call.progress().await;
        assert!(done > 1.0 && done < 1.001, "{way:?}: {done}");
        assert_eq!(words, "one", "{way:?}: what the work last said of itself");
        run.progress(2.0, Some("two")).await;
        assert_eq!(call.progress().await, (2.0, "two".to_owned()), "{way:?}");
        run.ends("done");
        assert_eq!(text(&call.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_sign_of_life_has_the_words_that_the_work_said_of_itself() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let (tool, mut runs) = played("plays");
            let fixture = HoldFixture::new([tool.task(mode)]).await;
            let mut call = Caller::new(way, &fixture).await.call_with_progress("plays", json!({})).await;
            let mut run = run_of(&mut runs).await;
            for said in ["waiting for its turn", "unpacking"] {
                run.ctx.status(said).await.expect("it may say so");
                let mut words = fixture.sign(&mut call).await.1;
                for _ in 0..3 {
                    if words != said {
                        // Said while the call became a task, it may not be stored yet; with this it is. Earlier signs may still be on their way.
                        with_timeout("a checkpoint", run.ctx.checkpoint(&said)).await.expect("it is kept");
                        words = fixture.sign(&mut call).await.1;
                    }
                }
                assert_eq!(words, said, "{way:?} {mode:?}");
            }
            run.ends("done");
            assert_eq!(text(&call.result().await), "done", "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn the_first_sign_of_life_counts_from_the_call() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Never] {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow").task(mode)]).await;
            let mut call = Caller::new(way, &fixture).await.call_with_progress("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            // By then it is a task in some of them; that is not when it began.
            fixture.pass(SECOND).await;
            fixture.pass(BEAT - SECOND - MS).await;
            call.is_quiet().await;
            fixture.pass(MS).await;
            assert_eq!(call.progress().await.1, "running for 5 s", "{way:?} {mode:?}");
            gate.go.send();
            assert_eq!(text(&call.result().await), "done", "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn progress_grows_also_when_a_round_becomes_a_task() {
    for way in [Way::ModernHttp, Way::ModernLines] {
        let rounds = tool("rounds", &(), |(), ctx: Ctx| async move {
            ctx.progress(Progress::at(5.0)).await?;
            match ctx.resumed().answers.get("name") {
                None => Err(ToolError::input_required(InputRequired::ask("name", name_form("Who are you?")))),
                Some(answer) => Ok(format!("hello {}", name_in(&answer.read()?))),
            }
        });
        let fixture = HoldFixture::new([rounds]).await;
        let mut call = Caller::new(way, &fixture).await.call_with_progress("rounds", json!({})).await;
        assert_eq!(call.progress().await.0, 5.0, "{way:?}");
        let answer = call.next().await.expect("an answer");
        assert!(answer.get("method").is_none(), "{way:?}: it was told already: {answer}");
        assert!(text(&answer["result"]).contains("Who are you?"), "{way:?}: {answer}");
    }
}

#[tokio::test]
async fn who_wants_no_progress_hears_nothing_until_the_answer() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        for _ in 0..3 {
            fixture.pass(BEAT).await;
            call.is_quiet().await;
        }
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_call_that_can_be_no_task_gives_signs_of_life_too() {
    for way in WAYS {
        let (gate, other) = (Gate::new(), Gate::new());
        let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
        let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
        let tools = registry([gate.tool("slow").task(TaskMode::Never), other.tool("other").task(TaskMode::Always)]);
        let fixture = HoldFixture::with(tools, config).await;
        fixture.tasker().start("other", json!({})).await;
        let mut call = Caller::new(way, &fixture).await.call_with_progress("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        let ((first, _), (second, _)) = (fixture.sign(&mut call).await, fixture.sign(&mut call).await);
        assert!(second > first, "{way:?}: {second} after {first}");
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_wait_gives_signs_of_life_and_ends_after_the_hold() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD).await;
        let id = followed(&call.result().await);
        let mut waits = caller.call_with_progress("task_wait", json!({"task_id": id})).await;
        let ((first, _), (second, _)) = (fixture.sign(&mut waits).await, fixture.sign(&mut waits).await);
        assert!(second > first, "{way:?}: {second} after {first}");
        assert_eq!(fixture.open().len(), 1, "{way:?}: a wait is no task");
        fixture.pass(HOLD).await;
        assert_eq!(followed(&waits.result().await), id, "{way:?}");
        gate.go.send();
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done", "{way:?}");
    }
}
