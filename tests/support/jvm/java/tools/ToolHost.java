import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of other classes, one after the other, in one JVM: a start costs a second.
 *
 * <p>A line of stdin is a command: the main class, its stdin, then its arguments, URL-encoded and
 * separated by spaces. A line of stdout is the answer: exit status, stdout and stderr in base64.
 */
public final class ToolHost {
    /** What a program that wants to end gets instead of the end of the JVM. */
    private static final class Ended extends Error {
        Ended() {
            super("the end", null, false, false);
        }
    }

    /** What a program wants done at its end; some flush there what they were to send. */
    private static final List<Runnable> HOOKS = new ArrayList<>();

    /** The status that a program first wanted to end with; it may catch its end and end again. */
    private static Integer status;

    private static final Base64.Encoder BASE64 = Base64.getEncoder();

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.setExitProcedure((wanted, message) -> end(wanted));
        Exit.setHaltProcedure((wanted, message) -> end(wanted));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            List<String> words = new ArrayList<>();
            for (String word : line.split(" ")) {
                words.add(URLDecoder.decode(word, StandardCharsets.UTF_8));
            }
            answers.println(run(words));
            answers.flush();
        }
    }

    private static void end(int wanted) {
        status = status == null ? wanted : status;
        throw new Ended();
    }

    private static String run(List<String> words) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(words.get(1).getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        status = null;
        int reached = call(words.get(0), words.subList(2, words.size()).toArray(new String[0]));
        HOOKS.forEach(Runnable::run);
        HOOKS.clear();
        return (status == null ? reached : status)
                + " " + BASE64.encodeToString(out.toByteArray())
                + " " + BASE64.encodeToString(err.toByteArray());
    }

    private static int call(String mainClass, String[] arguments) {
        try {
            Class.forName(mainClass).getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (status == null) {
                thrown.getCause().printStackTrace();
            }
            return 1;
        } catch (ReflectiveOperationException impossible) {
            impossible.printStackTrace();
            return 2;
        }
    }
}
