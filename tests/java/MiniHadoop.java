import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS and, with the word yarn, YARN on loopback ports of this machine, for tests.
 *
 * Arguments: a folder for its files, and what to start (hdfs or yarn). It writes the settings of clients to conf/
 * of the folder, prints "ready" and the address of the name node, and ends when its standard input is closed.
 */
public class MiniHadoop {
    public static void main(String[] words) {
        try {
            serve(words);
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(1);
    }

    private static void serve(String[] words) throws Exception {
        File folder = new File(words[0]);
        Configuration settings = new YarnConfiguration();
        settings.set("dfs.replication", "1");
        settings.set("dfs.permissions.superusergroup", "nobody");
        settings.setInt("dfs.namenode.handler.count", 4);
        MiniDFSCluster files =
                new MiniDFSCluster.Builder(settings, new File(folder, "dfs")).numDataNodes(1).build();
        files.waitActive();
        String address = "hdfs://127.0.0.1:" + files.getNameNodePort();
        settings.set("fs.defaultFS", address);
        MiniYARNCluster nodes = null;
        if (words[1].equals("yarn")) {
            nodes = startYarn(settings);
            settings = new Configuration(nodes.getConfig());
        }
        write(settings, new File(folder, "conf"));
        System.out.println("ready " + address);
        while (System.in.read() >= 0) {
            // wait for the end of the test
        }
        if (nodes != null) {
            nodes.stop(); // and the processes that it has started
        }
        Runtime.getRuntime().halt(0);
    }

    /** One node of 4 GiB: room for a master with the driver, and for one executor. Nobody measures what they take. */
    private static MiniYARNCluster startYarn(Configuration settings) throws Exception {
        settings.setInt("yarn.nodemanager.resource.memory-mb", 4096);
        settings.setInt("yarn.nodemanager.resource.cpu-vcores", 4);
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        settings.setInt("yarn.scheduler.maximum-allocation-mb", 4096);
        settings.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
        settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
        MiniYARNCluster nodes = new MiniYARNCluster("yarn", 1, 1, 1);
        nodes.init(settings);
        nodes.start();
        if (!nodes.waitForNodeManagersToConnect(60000)) {
            throw new IllegalStateException("no node manager in a minute");
        }
        return nodes;
    }

    private static void write(Configuration settings, File folder) throws Exception {
        folder.mkdirs();
        settings.unset("net.topology.node.switch.mapping.impl"); // a class of the mini cluster, which clients lack
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}) {
            try (OutputStream out = new FileOutputStream(new File(folder, name))) {
                settings.writeXml(out);
            }
        }
    }
}
