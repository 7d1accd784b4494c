import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.List;
import java.util.Objects;
import java.util.function.BooleanSupplier;

/**
 * Runs every check of the Java client against one broker, and prints what each came to.
 *
 * <p>A check is a public static method with a {@link Stage}. A line is "ok NAME", or "failed NAME"
 * with its trace behind it, indented.
 */
public final class Checks {
    private static final long DEADLINE_MS = 20_000;

    public static void main(String[] arguments) throws Exception {
        for (Class<?> group :
                List.of(RecordChecks.class, TransactionChecks.class, GroupChecks.class,
                        AdminChecks.class, ToolChecks.class, OwnershipChecks.class)) {
            for (Method check : group.getDeclaredMethods()) {
                if (Modifier.isPublic(check.getModifiers())) {
                    System.out.println(run(check, arguments[0]));
                    System.out.flush();
                }
            }
        }
        System.out.println("done");
    }

    private static String run(Method check, String address) {
        try (Stage stage = new Stage(address, check.getName())) {
            check.invoke(null, stage);
            return "ok " + check.getName();
        } catch (ReflectiveOperationException thrown) {
            StringWriter trace = new StringWriter();
            thrown.getCause().printStackTrace(new PrintWriter(trace, true));
            return "failed " + check.getName() + "\n  " + trace.toString().replace("\n", "\n  ");
        }
    }

    static void equal(Object expected, Object seen) {
        if (!Objects.equals(expected, seen)) {
            throw new AssertionError("expected " + expected + ", saw " + seen);
        }
    }

    static void isTrue(boolean fact, String what) {
        if (!fact) {
            throw new AssertionError(what);
        }
    }

    /** What a check does and may fail in. */
    interface Action {
        void run() throws Exception;
    }

    /** Runs what must fail with an error of this kind, itself or as the cause. */
    static void refused(Class<? extends Throwable> kind, Action action) {
        try {
            action.run();
        } catch (Exception thrown) {
            for (Throwable each = thrown; each != null; each = each.getCause()) {
                if (kind.isInstance(each)) {
                    return;
                }
            }
            throw new AssertionError("refused as " + thrown + ", not as " + kind, thrown);
        }
        throw new AssertionError("not refused, not as " + kind);
    }

    /** Asks again and again, until it is so. */
    static void until(String what, BooleanSupplier condition) {
        long endsAt = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.getAsBoolean()) {
            isTrue(System.currentTimeMillis() < endsAt, "not in time: " + what);
        }
    }

    private Checks() { }
}
